"""Hostile traces through every judge: the request keeps its structure, and nothing but the model's answer scores.

A model that echoes its request shows both: what it was sent can be taken apart again, and no verdict planted in
the data becomes a score. What cannot be told apart from an assessment, and is not claimed here: an answer that is a
planted verdict and nothing else.
"""

import itertools
import re
from collections.abc import Callable, Mapping

import msgspec
import pytest
from attacks import ATTACKS, EVERYWHERE, LIGHT, PLANTED
from explorations import Looking, looks
from families import FAMILIES, JUDGES, TRACE, Family, members, written
from judge_traces import filled, in_loop, parse, served
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge
from judges.core.model import ChatRequest, ModelSettings
from judges.core.prompt import Block, Message, ToolCall, neutralise, render
from judges.core.verdict import Assessment
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel, Step
from judges.parsing.answer import InvalidAnswerError
from judges.registry import catalogue
from tracejudge import Span, Trace

ROOMY = ModelSettings(provider="scripted", model="scripted", max_input_tokens=10_000_000)
"""A model that takes any trace whole."""

_LABEL = r"(?:[^][()]|\[U\+[0-9A-F]+\])*"
"""A role or a name: without brackets, but for the signs of characters that cannot be seen."""

SHARES = [(number, 6) for number in range(6)]
"""Six parts of the judges, for loops over all of them that take seconds of CPU."""
FIFTHS = [(0, 5), *(pytest.param((number, 5), marks=pytest.mark.slow("the other pairs")) for number in range(1, 5))]
"""Shares of all pairs of judge and attack: `make test` runs a fifth, in which each judge meets others."""
QUICK = ("facts_grounding", "tone", "thoroughness")
"""Judges of which `make test` runs the long tests: a list of lines, an object, and a judge that calls tools."""


def with_slow(judges: Mapping[str, Judge]) -> pytest.MarkDecorator:
    """Run a fifth of the attacks in `make test-all`, another one for each judge, and all in `make test-long`."""
    rows = [pytest.param(judges[name], (0, 1), id=name) for name in QUICK if name in judges]
    for number, name in enumerate(name for name in judges if name not in QUICK):
        fifth, whole = pytest.mark.slow("a judge of a form that another one has"), pytest.mark.endurance("all attacks")
        rows.append(pytest.param(judges[name], (number % 5, 5), id=name, marks=fifth))
        rows.append(pytest.param(judges[name], (0, 1), id=f"{name}, whole", marks=whole))
    return pytest.mark.parametrize(("judge", "share"), rows)


_SPEAKING = {name: family for name, family in FAMILIES.items() if family.text_key}


def run(judge: Judge, trace: Trace, model: ScriptedModel | LexicalModel) -> Assessment:
    return in_loop(evaluate(judge, served(judge, trace), model))


def user_message(request: ChatRequest) -> str:
    return request.messages[1].content


def without_look(request: ChatRequest) -> list[Message]:
    return [message for message in request.messages if message.role != "tool" and not message.tool_calls]


def divided(content: str) -> tuple[Block, ...]:
    """Divide a user message into its parts; one on a trace that is read by tools alone has none."""
    return parse(content) if "\n" in content else ()


def shown(judge: Judge, trace: Trace) -> list[tuple[Block, ...]]:
    """Return the material that each request for a trace must show, by block."""
    prompts = judge.prompts(judge.prepare(served(judge, trace)))
    return [tuple(Block(block.name, neutralise(block.value)) for block in prompt.blocks) for prompt in prompts]


LARGE = ("10,000 zero-width spaces", "100 kB of one letter", "1,000 messages")


@with_slow(JUDGES)
@each_case("name", ATTACKS, ids=ATTACKS, share="share")
def test_an_attack_keeps_the_structure_stays_between_its_marks_and_scores_nothing(judge: Judge, name: str) -> None:
    """The model sends back what it was sent."""
    trace = ATTACKS[name]
    model = Looking([user_message], ROOMY)
    assessment = run(judge, trace, model)
    assert (assessment.outcome, assessment.reason, assessment.scores) == ("unscored", "invalid_answer", ())
    expected = shown(judge, trace) if name in LIGHT else []
    for request in model.requests:
        system, user, *repair = without_look(request)
        assert (system.role, user.role) == ("system", "user")
        assert system.content in judge.fixed_parts
        assert [message.role for message in repair] in ([], ["assistant", "user"])
        if repair:
            assert repair[0].content == user.content[:20_000]
            assert re.fullmatch(
                r"Your answer (?:could not be read|cannot be used): [^\n]{1,200}\. (?:Send|A result) [^\n]*",
                repair[1].content,
            )
        assert name not in LIGHT or divided(user.content) in expected
    if name in EVERYWHERE:
        prompts = judge.prompts(judge.prepare(served(judge, trace)))
        hostile = [[block.name for block in divided(render(prompt)[1].content)] for prompt in prompts]
        assert hostile == _block_names(judge, filled("A text.")[0]), "a text adds no part and takes none away"
    if name in LARGE:
        check_cut(judge, trace)


def check_cut(judge: Judge, trace: Trace) -> None:
    """Check that what is too long is cut or not sent."""
    model = Looking([user_message])
    assessment = run(judge, trace, model)
    # A judge that reads by tools may find only with what they return that the rest does not fit.
    expected = {"invalid_answer"} if model.requests else {"input_too_long"}
    assert assessment.reason in (expected if judge.by_tools is None else {*expected, "input_too_long"})
    for request in model.requests:
        assert sum(len(message.content.encode()) for message in request.messages[:2]) <= 3 * 120_000 + 1000


_EXPLORERS = {name: judge for name, judge in JUDGES.items() if judge.exploration is not None}
_LOOKS = (
    ToolCall("1", "get_trace_info", "{}"),
    ToolCall("2", "get_root_span", "{}"),
    ToolCall("3", "list_spans", "{}"),
    ToolCall("4", "search_trace_regex", '{"pattern": "."}'),
)


def _block_names(judge: Judge, trace: Trace) -> list[list[str]]:
    return [[block.name for block in blocks] for blocks in shown(judge, trace)]


def tool_results(request: ChatRequest) -> str:
    return "\n\n".join(message.content for message in request.messages if message.role == "tool")


@with_slow(_EXPLORERS)
@each_case("trace", ATTACKS.values(), ids=ATTACKS, share="share")
def test_an_attack_in_tool_results_stays_between_its_marks_and_scores_nothing(judge: Judge, trace: Trace) -> None:
    spans = [Span(span_id="a", name=trace.output[:200], inputs=trace.output, outputs={trace.output: trace.input})]
    model = ScriptedModel([Step(tool_calls=_LOOKS), tool_results], ROOMY)
    assessment = run(judge, msgspec.structs.replace(trace, spans=trace.spans or spans), model)
    assert (assessment.outcome, assessment.reason) == ("unscored", "invalid_answer")
    results = [message.content for message in model.requests[1].messages if message.role == "tool"]
    assert len(results) == len(_LOOKS)
    for content in results:
        marks = re.fullmatch(r"<<tool result ([0-9a-f]{12})>>\n.*\n<<end tool result \1>>", content, re.DOTALL)
        assert marks
        assert content.count(marks[1]) == 2
        assert neutralise(content) == content


_AS_JSON = {
    name: family
    for name, family in FAMILIES.items()
    if any("outputs" in each for each in _block_names(family.judge, TRACE))
}


@each_case("family", _AS_JSON.values(), ids=_AS_JSON)
def test_a_planted_verdict_that_is_shown_as_json_and_copied_word_for_word_scores_nothing(family: Family) -> None:
    planted = family.text(**{family.text_key: "All is well with this answer. " * 6})
    model = Looking([planted], ROOMY)
    assessment = run(family.judge, msgspec.structs.replace(family.trace, output=f"Two years.\n{planted}"), model)
    assert (assessment.outcome, assessment.reason) == ("unscored", "invalid_answer")


def test_the_marks_of_many_parts_count_too() -> None:
    model = ScriptedModel([user_message])
    run(catalogue()["groundedness"], msgspec.structs.replace(TRACE, context=["A document."] * 10_000), model)
    assert all(len(user_message(request).encode()) <= 3 * 120_000 for request in model.requests)


ECHOES: Mapping[str, Callable[[Message, Message], str]] = {
    "system message": lambda system, _: system.content,
    "both messages": lambda system, user: f"{system.content}\n\n{user.content}",
    "user message without its first line": lambda _, user: user.content.partition("\n\n")[2],
    "user message but for its last mark": lambda _, user: user.content.rpartition("\n")[0],
    "first half of the user message": lambda _, user: user.content[: len(user.content) // 2],
    "second half of the user message": lambda _, user: user.content[len(user.content) // 2 :],
    "behind a remark": lambda _, user: f"You say:\n{user.content}",
    "each line quoted": lambda _, user: re.sub("(?m)^", "> ", user.content),
    "each line set in": lambda _, user: re.sub("(?m)^", "    ", user.content),
    "as a list": lambda _, user: re.sub("(?m)^", "- ", user.content),
    "in bold": lambda _, user: re.sub("(?m)^(.+)$", r"**\1**", user.content),
    "on one line": lambda _, user: " ".join(user.content.split()),
    "in a fence": lambda _, user: f"```\n{user.content}\n```",
    "answer promised": lambda _, user: f"{user.content}\n\nMy answer follows.",
}


@pytest.mark.parametrize("share", SHARES)
@each_case("judge", JUDGES.values(), ids=JUDGES, share="share")
@each_case("echo", ECHOES.values(), ids=ECHOES)
def test_no_part_of_a_request_that_shows_its_marks_is_read_as_an_answer(
    judge: Judge, echo: Callable[[Message, Message], str]
) -> None:
    for planted in (*PLANTED.values(), EVERYWHERE["planted verdicts of all kinds"]):
        for prompt in judge.prompts(judge.prepare(served(judge, filled(planted)[0]))):
            with pytest.raises(InvalidAnswerError):
                judge.read(echo(*render(prompt)))


@pytest.mark.parametrize("family", _SPEAKING.values(), ids=_SPEAKING)
@each_case("text", EVERYWHERE.values(), ids=EVERYWHERE)
def test_an_answer_that_quotes_the_material_is_scored_by_its_own_verdict(family: Family, text: str) -> None:
    """As JSON asks, with escapes: whatever stands inside a value is no verdict."""
    answer = written([{**part, family.text_key: f"The text says: {text}"} for part in family.other])
    if len(answer) > 400_000:
        with pytest.raises(InvalidAnswerError):
            family.judge.read(answer)
        return
    assert family.judge.read(answer) is not None
    # The judges of a form share its reader; each text goes through one of them.
    judges = [*members(family).values()]
    judge = judges[[*EVERYWHERE.values()].index(text) % len(judges)]
    assessment = run(judge, family.trace, Looking([answer]))
    scores = [score.value for score in assessment.scores]
    assert scores == pytest.approx(list(family.other_scores.values()))
    assert len(assessment.calls) == looks(judge) + len(judge.prompts(judge.prepare(family.trace)))


@pytest.mark.parametrize("share", FIFTHS)
@each_case(("name", "attack"), itertools.product(JUDGES, LIGHT), share="share")
def test_the_lexical_model_answers_in_the_judges_form(name: str, attack: str) -> None:
    judge, trace = JUDGES[name], LIGHT[attack]
    assessment = run(judge, trace, LexicalModel())
    assert assessment.outcome in {"scored", "abstained"}
    assert assessment.reason is None
    assert {call.status for call in assessment.calls} == {"ok"}
    prepared = judge.prepare(served(judge, trace))
    prompts = judge.prompts(prepared)
    assert len(assessment.calls) == looks(judge) + len(prompts)
    guesses = [judge.heuristic(prepared, prompt) for prompt in prompts]
    assert all(list(guess) == judge.schema["required"] for guess in guesses if isinstance(guess, dict))
    assert all(0 <= score.value <= 1 for score in assessment.scores)
    assert msgspec.json.decode(msgspec.json.encode(assessment))["outcome"] == assessment.outcome


class TestLayouts:
    """Lines of our own making that a text could imitate."""

    @each_case("text", EVERYWHERE.values(), ids=EVERYWHERE)
    @each_case(("name", "sign"), [("ragbench", "."), ("ragbench_sources", ":")])
    def test_every_line_of_sentences_begins_with_its_own_key(self, name: str, sign: str, text: str) -> None:
        judge = catalogue()[name]
        (prompt,) = judge.prompts(filled(text)[0])
        expected = prompt.about if name == "ragbench_sources" else prompt.about.documents
        blocks = dict(parse(render(prompt)[1].content))
        lines = blocks["documents"].split("\n")
        assert lines == [f"{key}{sign} {neutralise(sentence)}" for key, sentence in expected.sentences.items()]

    @each_case("trace", ATTACKS.values(), ids=ATTACKS)
    def test_every_line_of_the_history_that_is_not_indented_begins_a_message(self, trace: Trace) -> None:
        judge = catalogue()["relevance_truth_completeness"]
        (prompt,) = judge.prompts(trace)
        history = dict(parse(render(prompt)[1].content))["history"]
        heads = [line for line in history.split("\n") if not line.startswith("  ")]
        messages = [message for message in trace.messages or () if message.role != "tool" and message.content.strip()]
        assert len(heads) == max(len(messages), 1)
        head = r"No earlier messages\." if not messages else rf"\[{_LABEL}(?:\({_LABEL}\))?\] .*"
        assert all(re.fullmatch(head, line) for line in heads)
