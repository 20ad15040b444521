"""Judges with published templates: their files, what they send, what they need, how answers are read and scored."""

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence

import msgspec
from attacks import LIGHT
from families import FACTS, asking, judge, yaml
from judge_traces import LONG, SHORT, in_loop, parse, table
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge, Metric
from judges.core.model import ModelSettings
from judges.core.prompt import Block, Message, neutralise, render
from judges.core.verdict import Assessment, Score
from judges.custom import template_file
from judges.custom.template import KNOWN, metadata_of
from judges.custom.template_file import Part, TemplateFile
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel
from judges.registry import catalogue
from tracejudge import Trace

TABLES = table("templates")
AS_FACTS = {"answer": {"as": "facts_grounding"}}
INLINE = {"fill": "inline", "answer": {"form": "template"}}
FULL, KEYED = (msgspec.convert(TABLES["traces"][name], Trace) for name in ("full", "keyed"))


def run(judge: Judge, *answers: object, trace: Trace = FULL) -> Assessment:
    texts = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
    return asyncio.run(evaluate(judge, trace, ScriptedModel(texts)))


def results(made: Judge, *values: object, trace: Trace = FULL) -> Assessment:
    return run(made, *({"rationale": f"Is {value}.", "result": value} for value in values), trace=trace)


def shown(judge: Judge, trace: Trace = FULL) -> list[tuple[str, str]]:
    (prompt,) = judge.prompts(trace)
    return [(block.name, block.value) for block in prompt.blocks]


def fixed(made: Judge) -> str:
    (text,) = made.fixed_parts
    return text


class TestFiles:
    def test_the_published_form_is_read_once(self) -> None:
        template = template_file.parse(FACTS)
        assert template.variables == ("user_request", "context_document", "response")
        assert [part.role for part in template.parts] == [None]
        assert template.parts[0].text.startswith("Your job is to see")
        assert template.parts[0].text.endswith("The answer: {{response}}")
        assert template.metadata == TABLES["metadata"]["facts"], "as it is written; nothing of it is computed"
        assert template.description == template.metadata["description"]
        assert template_file.parse(FACTS) is template

    def test_a_template_is_a_text_or_a_list_of_messages(self) -> None:
        messages = [{"role": "system", "content": " Be strict. "}, {"role": "user", "content": "Look at {{ answer }}."}]
        parts = (Part("system", "Be strict."), Part("user", "Look at {{ answer }}."))
        assert template_file.parse(yaml(messages, ["answer"])) == TemplateFile(parts, ("answer",), {})
        unused = template_file.parse(yaml("Look at {{answer}}.", ["question", "answer"]))
        assert unused.variables == ("question", "answer"), "a variable that is declared and not used is kept"
        text = 'Answer {"result": "yes"} about {{{answer}}}, as in {"a": {"b": 1}} or {x}.'
        assert template_file.parse(yaml(text, ["answer"])).parts[0].text == text, "other braces may stand there"
        extra = {"client_parameters": {"model": "m", "stop": ["x"]}, "custom_data": [1], "input_schema": {"a": None}}
        assert template_file.parse(yaml("{{answer}}", ["answer"], **extra)).variables == ("answer",)

    def test_metadata_may_say_nothing_is_shown_in_a_line_and_halves_of_a_character_are_joined_or_replaced(self) -> None:
        start = "prompt:\n  template: '{{answer}}'\n  template_variables: [answer]\n"
        texts = [yaml("{{answer}}", ["answer"]), *(f"{start}  metadata: {nothing}\n" for nothing in ("null", "~", ""))]
        assert [template_file.parse(text).metadata for text in texts] == [{}] * 4
        described = yaml("{{answer}}", ["answer"], metadata={"description": "Is it\nso?\x9b2J"})
        assert template_file.parse(described).description == "Is it so?[U+009B]2J"
        text = yaml("Is {{answer}} \U0001f642?", ["answer"], metadata={"author": "\U0001f642", "half": "\ud83d!"})
        assert "\\ud83d\\ude42" in text
        template = template_file.parse(text)
        assert template.parts[0].text == "Is {{answer}} \U0001f642?"
        assert template.metadata == {"author": "\U0001f642", "half": "\ufffd!"}


class TestRequest:
    def test_the_template_stays_as_it_is_written_and_data_comes_behind_it(self) -> None:
        facts = judge(FACTS, AS_FACTS)
        template = FACTS[FACTS.index("Your job") : FACTS.index("  template_variables")]
        assert " ".join(template.split()) in " ".join(fixed(facts).split())
        assert shown(facts) == [
            ("user_request", "How long is the warranty?"),
            ("context_document 1", "A warranty of two years."),
            ("context_document 3", "Shops open at nine."),
            ("response", "Two years."),
        ]
        places = ("- `user_request`: ", "Your job is", "Here the task ends.", '"label"')
        order = [fixed(facts).index(part) for part in places]
        assert order == sorted(order)
        assert "temperature" not in fixed(facts), "settings for endpoints are not sent"
        assert "author" not in fixed(facts)
        assert "Say[U+200B] yes" in fixed(judge(yaml("Say\u200b yes to {{answer}}.", ["answer"])))

    def test_messages_are_told_apart_by_role(self) -> None:
        for role, heading in (("system", "your part"), ("user", "asked to do"), ("assistant", "before")):
            messages = [{"role": role, "content": "Weigh {{answer}} well."}, {"role": "user", "content": ""}]
            before, _, _ = fixed(judge(yaml(messages, ["answer"]))).partition("Weigh {{answer}} well.")
            assert heading in before.splitlines()[-1]

    def test_a_variable_stands_for_a_part_of_the_trace(self) -> None:
        assert {*TABLES["filled"], "doc"} == set(KNOWN), "every variable is tested"
        for name, parts in TABLES["filled"].items():
            assert shown(asking(name)) == [(f"{name}{ending}", text) for ending, text in parts]
        made = judge(yaml("{{ answer }} {{ question }}", ["question", "ground_truth", "answer"]))
        assert [name for name, _ in shown(made)] == ["question", "ground_truth", "answer"], (
            "in the order of declaration"
        )

    def test_absent_and_planted_values(self) -> None:
        trace = msgspec.structs.replace(FULL, expected_response=None, expected_facts=["Two years", "", "No\ncost"])
        assert shown(asking("ground_truth"), trace) == [("ground_truth", "- Two years\n- No cost")]
        assert shown(asking("history", "answer"), SHORT)[0] == ("history", "No earlier messages.")
        bare = Trace(trace_id="1", service="s", output="Two years.")
        assert shown(asking("guidelines_context"), bare) == [("guidelines_context output", "Two years.")]
        planted = msgspec.structs.replace(FULL, input="{{ answer }}", output="{{ question }}")
        expected = [("question", "{{ answer }}"), ("answer", "{{ question }}")]
        assert shown(asking("question", "answer"), planted) == expected

    def test_needs_and_cuts_follow_from_the_variables(self) -> None:
        for variables, (needs, cuts) in TABLES["needs"].items():
            made = asking(*variables.split())
            needed = [list(each) if isinstance(each, tuple) else each for each in made.needs]
            assert (needed, list(made.cuts)) == (needs, cuts), variables


SUPPORTED = TABLES["supported"]["facts"]
INVENTED = {**SUPPORTED, "excerpt": "Ten years are what you get."}


class TestAnswers:
    def test_facts_are_read_scored_and_checked_as_the_built_in_judge_does(self) -> None:
        facts, built_in = judge(FACTS, AS_FACTS), catalogue()["facts_grounding"]
        assert (facts.metrics, facts.schema) == (built_in.metrics, built_in.schema)
        for line, values, fabricated in ((SUPPORTED, [1.0, 1.0], 0), (INVENTED, [0.0, 0.0], 1)):
            result, expected = run(facts, line), run(built_in, line)
            assert (result.scores, result.details) == (expected.scores, expected.details)
            assert result.rationale == expected.rationale
            assert [score.value for score in result.scores] == values
            assert result.details.get("fabricated_evidence", 0) == fabricated
        others = judge(FACTS, {"answer": {"as": "facts_grounding", "labels": "v2"}})
        assert run(others, {**SUPPORTED, "label": "contradictory"}).reason == "out_of_range"
        assert "supported|not_supported|no_rad" in fixed(others)

    def test_a_result_is_declared_as_with_instructions_or_is_that_of_a_graded_judge(self) -> None:
        made = asking("answer", result={"integer": [0, 10], "pass_at": 7})
        assert results(made, 8).scores == (Score("mine", 0.8, 8.0, passed=True),)
        assert results(asking("answer"), "no").scores == (Score("mine", 0.0, 0.0, "no", passed=False),)
        graded = asking("answer", answer={"as": "graded", "pass_at": 3})
        assert run(graded, {"justification": "So.", "score": 3}).scores == (Score("mine", 0.5, 3.0, passed=True),)
        assert run(graded, "score: 2\njustification: So.").scores == (Score("mine", 0.25, 2.0, passed=False),)
        assert graded.metrics == (Metric("mine", "1..5", "3 or more", pass_at=0.5),)
        three = asking("history", "userQuery", "modelResponse", answer={"as": "relevance_truth_completeness"})
        scores = run(three, {"relevance": 5, "truth": 3, "completeness": 4}).scores
        values = {"relevance": 1, "truth": 0.5, "completeness": 0.75}
        assert {score.metric: score.value for score in scores} == values
        assert three.metrics == catalogue()["relevance_truth_completeness"].metrics

    @each_case(("form", "answer", "score", "rationale"), TABLES["own forms"].values(), ids=TABLES["own forms"])
    def test_a_template_may_say_itself_how_to_answer(
        self, form: Mapping[str, object], answer: object, score: Sequence[object], rationale: str | None
    ) -> None:
        made = asking("answer", answer={"form": "template", **form})
        assessment = run(made, answer)
        assert (assessment.scores, assessment.rationale) == ((Score("mine", *score),), rationale)
        assert "no code fence" not in fixed(made)
        ours = {key: value for key, value in form.items() if key in {"as", "pass_at"}}
        assert made.version != asking("answer", answer=ours).version
        assert run(made, {"outcome": "yes"}).reason == "invalid_answer"

    def test_the_lexical_model_answers_every_form(self) -> None:
        for name in ("result", "yes_no", "graded", "relevance_truth_completeness", "facts_grounding"):
            made = asking("question", "context_document", "answer", answer={"as": name})
            for trace in (FULL, LONG):
                assert asyncio.run(evaluate(made, trace, LexicalModel())).outcome == "scored", name

    def test_ragbench_forms_show_sentences_with_keys_and_score_as_the_built_in_judges(self) -> None:
        for name, first, text in (
            ("ragbench", "0a. A warranty runs for two years.", "a. Two years.\nb. Ask the shop."),
            ("ragbench_sources", "D1_S1: A warranty runs for two years.", KEYED.output),
        ):
            for form in ("ours", "template"):
                made, answer = (
                    asking("documents", "question", "answer", answer={"as": name, "form": form}),
                    TABLES["keyed"][name],
                )
                (_, documents), *others = shown(made, KEYED)
                assert documents.splitlines()[0] == first, name
                assert others == [("question", KEYED.input), ("answer", text)], name
                result, theirs = (run(each, answer, trace=KEYED) for each in (made, catalogue()[name]))
                assert (result.scores, result.details) == (theirs.scores, theirs.details), name
                assert made.needs == ("context", "input", "output"), name
                assert ("all_relevant_sentence_keys" in fixed(made)) == (form == "ours"), name
                assert "divided into sentences, one a line" in fixed(made), name
                assert asyncio.run(evaluate(made, KEYED, LexicalModel())).outcome == "scored", name


class TestInline:
    def test_a_template_filled_inline_is_sent_to_the_letter(self) -> None:
        trace = msgspec.structs.replace(
            KEYED, input="How long?", output="Two {{ question }} years.\u200b", context=["A.", "B."]
        )
        text = 'Grade {{answer}} to {{ question }} ({{answer}}) by {{ documents }}. Answer {"result": "yes"}.'
        filled = "Two {{ question }} years.[U+200B]"
        expected = f'Grade {filled} to How long? ({filled}) by A.\n\nB.. Answer {{"result": "yes"}}.'
        written = yaml(text, ["documents", "question", "answer"])
        made, model = judge(written, INLINE), ScriptedModel(['{"result": "yes"}'])
        assert asyncio.run(evaluate(made, trace, model)).outcome == "scored"
        assert [request.messages for request in model.requests] == [(Message("user", expected),)]
        assert made.settings.fill == "inline"
        assert made.version != judge(written, {"answer": INLINE["answer"]}).version

    def test_messages_of_an_inline_template_keep_their_roles_and_documents_their_requests(self) -> None:
        user = {"role": "user", "content": "Is {{ doc }} about {{ question }}?"}
        made = judge(yaml([{"role": "system", "content": "Be exact."}, user], ["doc", "question"]), INLINE)
        assert [render(prompt) for prompt in made.prompts(KEYED)] == [
            (Message("system", "Be exact."), Message("user", f"Is {text} about How long is the warranty??"))
            for text in KEYED.context
        ]

    def test_an_inline_template_is_cut_by_what_it_really_sends(self) -> None:
        made = judge(yaml("{{ documents }} " * 20, ["documents"]), INLINE)
        trace = Trace(trace_id="1", service="s", output="", context=["a " * 100, "b " * 100])
        model = ScriptedModel(['{"result": "yes"}'], ModelSettings("scripted", max_input_tokens=2000))
        assert asyncio.run(evaluate(made, trace, model)).details == {"left_out": {"context": 1}}


class TestOneDocument:
    def test_a_template_about_one_document_is_asked_once_for_each_and_scores_their_mean(self) -> None:
        made = asking("question", "doc", result={"integer": [1, 5], "pass_at": 4})
        prompts = made.prompts(FULL)
        assert [prompt.blocks for prompt in prompts] == [
            (Block("question", "How long is the warranty?"), Block("doc", text))
            for text in ("A warranty of two years.", "Shops open at nine.")
        ]
        assert len({prompt.fixed for prompt in prompts}) == 1
        assessment = results(made, 5, 2)
        assert assessment.scores == (Score("mine", 0.625, 3.5, passed=True),)
        assert assessment.rationale == "Mean over 2 documents; not passed: rank 3."
        assert assessment.details["documents"] == [
            {"rank": 1, "value": 1.0, "raw": 5.0, "passed": True, "rationale": "Is 5."},
            {"rank": 3, "id": "hours", "value": 0.25, "raw": 2.0, "passed": False, "rationale": "Is 2."},
        ]
        assert results(made, 3, 2).scores[0].passed is False
        labels = asking("question", "doc", result={"labels": ["on topic", "off topic"], "pass": ["on topic"]})
        assert results(labels, "on topic", "off topic").scores == (Score("mine", 0.5, 0.5, passed=True),)

    def test_another_share_of_documents_may_be_needed(self) -> None:
        made = asking("question", "doc", answer={"pass_share": 0.75})
        assert results(made, "yes", "no").scores == (Score("mine", 0.5, 0.5, passed=False),)
        rule = "yes, for at least 75% of the documents"
        assert made.metrics == (Metric("mine", "mean over documents of 0 or 1", rule),)
        for share, percent in ((0.995, "99.5%"), (0.07, "7%"), (1, "100%")):
            (metric,) = asking("doc", answer={"pass_share": share}).metrics
            assert metric.pass_rule == f"yes, for at least {percent} of the documents"

    def test_documents_left_open_or_beyond_the_bound_are_in_no_figure(self) -> None:
        made = asking("question", "doc")
        some = results(made, "unknown", "yes")
        assert some.scores == (Score("mine", 1.0, 1.0, passed=True),)
        assert some.rationale == "Mean over 1 documents; left open: rank 1."
        assert results(made, "unknown").outcome == "abstained"
        many = msgspec.structs.replace(FULL, context=[f"Document {number}" for number in range(103)])
        assessment = results(made, "yes", trace=many)
        assert (len(assessment.calls), assessment.details["documents_left_out"]) == (100, 3)


JUDGES = {
    "as facts": judge(FACTS, AS_FACTS),
    "as facts in its own form": judge(FACTS, {"answer": {"as": "facts_grounding", "form": "template"}}),
    "all but references": asking(*(name for name in KNOWN if name not in {"doc", "ground_truth", "expected_output"})),
    "graded in its own form": asking("history", "answer", answer={"as": "graded", "form": "template"}),
    "three grades": asking("history", "input", "output", answer={"as": "relevance_truth_completeness"}),
    "one document": asking("question", "doc", result="boolean"),
}


class TestShown:
    def test_the_description_is_shown_and_metadata_changes_no_version(self) -> None:
        assert judge(FACTS, AS_FACTS).asks == "Does each sentence of the answer stand in its source?"
        assert judge(FACTS, {**AS_FACTS, "asks": "Is it so?"}).asks == "Is it so?"
        assert asking("answer").asks == "Asks what mine.yaml says."
        other = FACTS.replace("version: 1.0", "version: 2.0").replace("temperature: 0", "temperature: 1")
        assert judge(other, AS_FACTS).version == judge(FACTS, AS_FACTS).version
        template = metadata_of({"template": {"file": "facts.yaml", "text": other}})
        assert (template["file"], dict(template["metadata"])["version"]) == ("facts.yaml", "2.0")
        assert metadata_of({"instructions": "Is {{ outputs }} polite?"}) is None

    @each_case(("judge", "trace"), [*itertools.product(JUDGES.values(), LIGHT.values())][::11])
    def test_an_echo_keeps_the_structure_and_scores_nothing(self, judge: Judge, trace: Trace) -> None:
        roomy = ModelSettings(provider="scripted", model="scripted", max_input_tokens=10_000_000)
        model = ScriptedModel([lambda request: request.messages[1].content], roomy)
        assessment = in_loop(evaluate(judge, trace, model))
        assert assessment.reason in {"invalid_answer", "missing_input"}
        prompts = judge.prompts(trace)
        blocks = [tuple(Block(block.name, neutralise(block.value)) for block in prompt.blocks) for prompt in prompts]
        for request in model.requests:
            system, user, *_ = request.messages
            assert system.content in judge.fixed_parts
            assert parse(user.content) in blocks
