"""`judges align` on labelled SummEdits traces, with an endpoint whose bias is planted, and without one.

`summedits.jsonl` holds 80 short traces of SummEdits (salesforce/factualNLG, Apache-2.0): summaries of chats by models,
half of them with a wrong detail, as the tag `grounded` says.
"""

import asyncio
import importlib
import json
import shutil
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from support.commands import Run, labelled, words, write_lines
from support.endpoint import ChatEndpoint
from support.replies import Call, Reply, answers_json, failing, yes_no
from support.tables import read_table

from judges.agreement.labelled import Judged, Labelled
from judges.agreement.paired import halves
from judges.calling.evaluation import evaluate, prepared
from judges.core.faults import install_command
from judges.core.judge import RESULT, Judge
from judges.core.verdict import Assessment, Reason, Score
from judges.custom import define
from judges.features.lab.alignment import Alignment, NotJudgedError, Rules, Trial
from judges.models.lexical import LexicalModel
from judges.parsing.answer import InvalidAnswerError
from judges.registry import catalogue
from tracejudge import Message, Trace

pytestmark = pytest.mark.usefixtures("_place")
FILE = Path(__file__).parent / "summedits.jsonl"
TRACES = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
OVERLOOKED = "Verdict of the people: fail\nVerdict of the judge: pass"
RULE = "A summary fails when a detail of it differs from the document."
ALIGN = ("judges", "align", "groundedness", "labels.jsonl", "--model", "large", "--out", "judges.d/groundedness.toml")
Verdict = Callable[[dict[str, str], bool], str]


def judge_of(verdict: Verdict) -> Callable[[Call], Reply]:
    """Answer with the verdict on the trace that is shown, told whether it is guided; derive the rule from cases."""
    by_output = {" ".join(trace["output"].split()): trace for trace in TRACES}

    def behaviour(call: Call) -> Reply:
        system, shown = (message["content"] for message in call.body["messages"][:2])
        if "You write the guidance of a judge" in system:
            # It finds the bias in the cases, or it finds nothing.
            rules = [RULE] if shown.count(OVERLOOKED) > shown.count("They differ.") / 2 else []
            return answers_json({"rationale": "Let's think step by step. So.", "result": rules})
        (trace,) = (trace for output, trace in by_output.items() if output in " ".join(shown.split()))
        return yes_no(verdict({**trace["tags"], "id": trace["trace_id"]}, RULE in system))

    return behaviour


def truth(fields: dict[str, str], noise: float) -> str:
    """The label of people, but for a share of noise."""
    is_noise = int(sha256(fields["id"].encode()).hexdigest(), 16) % 1000 < noise * 1000
    return {"yes": "no", "no": "yes"}[fields["grounded"]] if is_noise else fields["grounded"]


def overlooks_details(fields: dict[str, str], guided: bool) -> str:  # noqa: FBT001
    """Without the rule no summary fails."""
    return truth(fields, 0.1) if guided else "yes"


@pytest.fixture
def _place(run: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - it makes the place
    """Make a folder of judges, the labels, and a model at the endpoint."""
    Path("judges.d").mkdir()
    shutil.copy(FILE, "labels.jsonl")
    model = {"base_url": endpoint.base_url, "model": "large", "price": {"input": 1.0, "output": 2.0}}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"large": model}))


@pytest.mark.parametrize("optimizer", ["memory", pytest.param("gepa", marks=pytest.mark.slow("a second variant"))])
def test_a_planted_bias_is_found(
    run: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    endpoint.behaviour = judge_of(overlooks_details)
    ended = run(*ALIGN, "--optimizer", optimizer, "--json")
    assert ended.code == 0, ended.err
    document = ended.document
    before, after, gain = (document["held_out"][name] for name in ("before", "after", "gain"))
    assert (before["value"], after["low"] > 0.7, gain["low"] > 0.2) == (0.5, True, True)
    assert (document["guidance"], document["calls"]) == ([RULE], len(endpoint.calls))
    assert document["cost_usd"] == pytest.approx(document["calls"] * (100 + 2 * 20) / 1e6)
    # The file takes the built-in judge's place, and what was measured is what is loaded.
    monkeypatch.setenv("TRACEJUDGE_JUDGES_FOLDER", "judges.d")
    text = Path(document["written"]).read_text(encoding="utf-8")
    assert text.startswith("# Guidance of `tracejudge judges align`")
    (own,) = [container for container in run("judges", "--json").document if container["name"] == "groundedness"]
    assert (own["origin"], own["version"]) == ("judges.d/groundedness.toml", document["version"])
    for name in ("groundedness", "judges.d/groundedness.toml"):
        test = ("judges", "test", name, "labels.jsonl", "--label", "grounded", "--model", "large")
        tested = run(*test, "--json").document
        assert tested["balanced_accuracy"] > 0.8
        assert tested["version"] == document["version"]
    # The judge that was aligned is aligned further from its file; here nothing is left to learn.
    again = run(*ALIGN, "--json")
    assert (again.code, again.document["guidance"]) == (1, [RULE])
    assert Path(document["written"]).read_text(encoding="utf-8") == text


def test_nothing_is_written_unless_the_agreement_on_held_out_traces_rises(run: Run, endpoint: ChatEndpoint) -> None:
    labelled_traces = [Labelled(Trace(trace_id=each["trace_id"], service="s", output="o"), "yes") for each in TRACES]
    train = {each.trace.trace_id for each in halves(labelled_traces).train}
    held_out = [trace["output"] for trace in TRACES if trace["trace_id"] not in train]
    assert held_out
    without_bias = judge_of(lambda fields, _: truth(fields, 0.2))
    by_heart = judge_of(lambda fields, guided: fields["grounded"] if guided and fields["id"] in train else "yes")
    no_gain = "nothing is written: no guidance raised the agreement on the traces to learn from"
    for behaviour, options, message in (
        (without_bias, "memory", no_gain),
        (without_bias, "gepa", no_gain),
        (failing(401), "memory --tries 1", "some traces are not judged (judge_rejected"),
        (by_heart, "memory", "the agreement on the held-out traces did not rise beyond the interval"),
    ):
        endpoint.forget()
        endpoint.behaviour = behaviour
        ended = run(*ALIGN, "--optimizer", *options.split())
        assert (ended.code, message in ended.err) == (1, True), (message, ended.err)
        assert not list(Path("judges.d").iterdir()), message
        if message == no_gain:
            shown = "\n".join(call.text() for call in endpoint.calls)
            assert not [output for output in held_out if output in shown], options
    texts = ("1.000", "improvement on the held-out traces: 0.000 (", "can show no improvement under about", "calls: ")
    assert [text for text in texts if text not in ended.out] == []


def test_the_definition_of_an_own_judge_keeps_its_keys(run: Run, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = judge_of(overlooks_details)
    definition = (
        'instructions = """\nIs {{ outputs }} true to {{ context }}?\nA path is C:\\\\new, a quote \\"."""\n'
        'asks = "Is it true?"\nexamples = [{ outputs = "a", result = "yes" }]\nguidance = ["Be strict."]\n'
    )
    file = Path("judges.d/true_to_source.toml")
    file.write_text(definition, encoding="utf-8")
    align = ("judges", "align", file, "labels.jsonl", "--model", "large", "--out", file, "--label", "grounded")
    refused = run(*align)
    assert (refused.code, "was not written by align; give --force" in words(refused.err)) == (2, True)
    assert file.read_text(encoding="utf-8") == definition
    ended = run(*align, "--force")
    assert ended.code == 0, ended.err
    assert [text for text in ("can show no improvement", "can hardly show") if text in ended.out] == []
    assert f"1. {RULE}" in ended.out
    system = run("judges", "show", file, "--json").document["requests"][0][0]["content"]
    assert [text for text in (RULE, 'A path is C:\\new, a quote ".') if text not in system] == []
    assert "Be strict." not in system


def test_what_cannot_be_aligned_is_refused(run: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("judges.d/other.toml").write_text('instructions = "Is {{ outputs }} polite?"\n', encoding="utf-8")
    write_lines("few.jsonl", TRACES[:19])
    write_lines("yes.jsonl", [labelled("yes", trace_id=f"{n}") for n in range(40)])
    write_lines("two.jsonl", [{**trace, "tags": {**trace["tags"], "b": "yes"}} for trace in TRACES])
    models = {"large": {"base_url": endpoint.base_url, "model": "large"}, "words": {"provider": "lexical"}}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps(models))
    for text, message in read_table(__file__, "align_refused").items():
        judge, file, model, out = text.split()
        ended = run("judges", "align", judge, file, "--model", model, "--out", out)
        assert (ended.code, message in words(ended.err)) == (2, True), (text, ended)
    monkeypatch.setattr(importlib.import_module("worker.features.lab.align"), "find_spec", lambda _name: None)
    ended = run(*ALIGN, "--optimizer", "gepa")
    assert (ended.code, install_command("gepa") in words(ended.err)) == (2, True)
    assert not endpoint.calls


TRACE = Trace(
    trace_id="t",
    service="s",
    input="When does the shop open?",
    output="It opens on Monday. It closes at six.",
    messages=[Message(role="user", content="Hello."), Message(role="assistant", content="Hi.")],
    context=["The shop opens on Monday.", "It closes at seven."],
    guidelines=["Be kind."],
    expected_response="On Monday.",
)


class Asked:
    """Answers every judge with a verdict that passes, and the request for guidance with rules."""

    def __init__(self, *rules: str, reason: Reason | None = None) -> None:
        self.requests: list[tuple[Judge, Trace]] = []
        self._rules = rules
        self._reason = reason

    async def __call__(self, judge: Judge, trace: Trace) -> Assessment:
        if judge.name == "alignment":
            self.requests.append((judge, trace))
            return Assessment("scored", details={RESULT: list(self._rules)})
        if self._reason is not None:
            return Assessment("unscored", self._reason)
        return Assessment("scored", None, (Score("own", 1.0, label="yes", passed=True),), "It is so.")


def alignment(table: dict[str, object], asked: Asked, labels: Sequence[str], kept: Rules = ()) -> Alignment:
    train = [Labelled(TRACE, label) for label in labels]
    return Alignment(lambda rules: define("own", {**table, "guidance": rules}), None, train, asked, kept)


def test_a_case_of_every_judge_is_shown_with_both_verdicts() -> None:
    tables: list[dict[str, object]] = [{"based_on": name} for name in catalogue()]
    tables += [{"instructions": "Is {{ outputs }} kind?"}, {"instructions": "Does {{ trace }} loop?"}]
    verdicts = "Verdict of the people: {}\nVerdict of the judge: pass (yes)\nThey {}."
    for table in tables:
        judge = define("own", table)
        if judge.missing(prepared(judge, TRACE)):
            continue
        asked = Asked("A rule.")
        best = asyncio.run(alignment(table, asked, ["yes", "no"], ("Before.",)).memory(1))
        assert best.rules == ("Before.",), table  # it is no better
        ((deriver, shown),) = asked.requests
        wrong, right = map(str, shown.context or ())
        assert wrong.startswith(verdicts.format("fail", "differ")), table
        assert right.startswith(verdicts.format("pass", "agree")), table
        assert "opens on Monday" in wrong, table
        assert (shown.input, shown.output) == (judge.fixed_parts[0], "- Before."), table
        # The whole way of a request: the model without words writes no guidance.
        assessment = asyncio.run(evaluate(deriver, shown, LexicalModel()))
        assert assessment.details[RESULT] == [], table


def test_long_cases_are_cut_in_the_middle_and_both_kinds_of_disagreement_come_first() -> None:
    asked = Asked("A rule.")
    search = alignment({"based_on": "groundedness"}, asked, [])
    long = Trace(trace_id="t", service="s", input="?", output="begin " + "x" * 20_000 + " end", context=["c"])

    def judged(label: str, passed: float) -> Judged:
        score = Score("own", passed, passed=bool(passed))
        return Judged(long, label, Assessment("scored", None, (score,)))

    many = [judged("no", 1)] * 40 + [judged("yes", 0)] * 2 + [judged("yes", 1)] * 20
    # Those of one kind come first in the file, and yet the first request shows both.
    for attempt, count in ((2, 10 + 6), (0, 16 + 6)):
        assert asyncio.run(search.derive(Trial((), many), attempt)) == ("A rule.",)
        cases = [str(case) for case in asked.requests[-1][1].context or ()]
        assert len(cases) == count
        assert all(len(case) < 6400 and "characters left out]" in case for case in cases)
    heads = [case.splitlines()[:2] for case in cases[:4]]
    failed, passed = ["Verdict of the people: fail", "Verdict of the judge: pass"], "Verdict of the people: pass"
    assert [head == failed for head in heads] == [True, False, True, False]
    assert heads[1] == [passed, "Verdict of the judge: fail"]
    assert asyncio.run(search.derive(Trial((), many), 3)) is None  # all cases were shown
    assert asyncio.run(search.derive(Trial((), many[42:]))) is None  # nothing to learn


def test_guidance_is_read_as_rules_of_one_line_and_the_search_ends_without_answers() -> None:
    table: dict[str, object] = {"based_on": "groundedness"}
    asked = Asked("A rule.")
    asyncio.run(alignment(table, asked, ["yes", "no"]).memory(1))
    ((deriver, shown),) = asked.requests
    assert shown.output == "none yet"

    def read(*rules: str) -> object:
        return deriver.read(json.dumps({"rationale": "So.", "result": rules})).value

    assert read(" A\n rule. ", " ", "B") == ["A rule.", "B"]
    for rules in (["x"] * 9, ["x" * 1001]):
        with pytest.raises(InvalidAnswerError):
            read(*rules)
    search = alignment(table, Asked(), ["yes", "no"])
    asyncio.run(search.memory(1))
    assert search.note == "it found no rule that explains the disagreements"
    with pytest.raises(NotJudgedError, match="judge_unavailable"):
        asyncio.run(alignment(table, Asked(reason="judge_unavailable"), ["yes", "no"]).memory(1))
    asked = Asked(reason="refusal")
    best = asyncio.run(alignment(table, asked, ["yes", "no"]).memory(1))
    assert (best.agreement, asked.requests) == (0, []), "a final reason does not end it"
