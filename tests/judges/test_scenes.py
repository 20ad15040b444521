"""Judges by scenes, settings and guidance: what is needed and shown beside the fixed part, and what answers mean.

The tables are in ``data/scenes.json`` and ``data/guesses.json``; the results, with the guesses of the heuristics, in
golden files.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from families import FACTS, FACTS_FORM, JUDGES, asking, judge, yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from judge_traces import ASKING, LONG, SHORT, in_loop, misread, outcome, table, told
from support.tables import check_golden

from judges.calling.evaluation import evaluate
from judges.core.judge import AnsweredPrompt, Judge
from judges.core.model import ModelSettings
from judges.core.prompt import MATERIAL_RULES, render
from judges.core.sessions import join
from judges.custom import DefinitionError, define, template_file
from judges.custom.template import KNOWN, metadata_of
from judges.custom.template_file import Part, TemplateFile
from judges.forms.graded import grade, read
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel
from judges.parsing.answer import AnswerError
from judges.parsing.sentences import shape
from judges.registry import catalogue, load_judges
from tracejudge import Trace

TABLES = table("scenes")
TRACES = {"short": SHORT, "long": LONG, **{name: msgspec.convert(row, Trace) for name, row in TABLES["traces"].items()}}
ROOMY = ModelSettings("scripted", model="scripted")


def judge_of(row: Mapping[str, Any]) -> Judge:
    """Make a judge of a template with these variables, of a definition in words, or of the catalogue with settings."""
    if "file" in row:
        return judge(FACTS, row["table"])
    if "variables" in row:
        variables = row["variables"].split()
        template = row.get("template", " ".join(f"{{{{{variable}}}}}" for variable in variables))
        return judge(yaml(template, variables), row.get("table"))
    if "define" in row:
        return define("mine", row["define"])
    return JUDGES[row["judge"]].configured(row.get("settings", {}))


def trace_of(row: Mapping[str, Any]) -> Trace:
    """Change a trace of the table, or join traces of which each is a question, an answer and earlier messages."""
    trace = TRACES[row.get("trace", "full")]
    turns = [
        {"input": question, "output": answer, "messages": [{"role": role, "content": text} for role, text in history]}
        for question, answer, history in row.get("turns", ())
    ]
    if turns:
        trace = join([msgspec.convert({**msgspec.to_builtins(trace), **turn}, Trace) for turn in turns])
    return msgspec.convert({**msgspec.to_builtins(trace), **row.get("changes", {})}, Trace)


def test_scenes_are_those_of_the_golden_file() -> None:
    written, before = list[str](), list[str]()
    for name, row in TABLES["scenes"].items():
        made, trace = judge_of(row), trace_of(row)
        metrics = [f"{each.name} ({each.scale}; {each.passes}; {each.pass_at})" for each in made.metrics]
        written.append(f"## {name}\nneeds {made.needs} cuts {made.cuts} gives {' '.join(metrics)}")
        prepared = made.prepare(trace)
        if missing := made.missing(prepared):
            written.append(f"missing: {missing}")
        if row.get("fixed"):
            written += made.fixed_parts
        shown = list[str]()
        for prompt in made.prompts(prepared):
            assert prompt.fixed in {*made.fixed_parts, ""}, name
            shown += [f"{sent.role}: {sent.content}" for sent in render(prompt) if sent.content not in made.fixed_parts]
        written += ["shows the same"] if shown == before else shown
        before = shown
        rows = row.get("answers", {})
        for what, answers in rows.items() if isinstance(rows, dict) else enumerate(rows):
            texts = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
            asked = replace(made, check=None) if row.get("unchecked") else made
            assessment = in_loop(evaluate(asked, trace, ScriptedModel(texts, ROOMY)))
            written.append(f"# {what}\n{told((), assessment)}")
    check_golden(Path(__file__).with_name("golden_scenes.txt"), "\n".join(written) + "\n")
    variables = " ".join(row.get("variables", "") for row in TABLES["scenes"].values())
    assert set(variables.split()) == set(KNOWN), "every variable of templates is tested"


def test_guesses_of_the_heuristics_are_those_of_the_golden_file() -> None:
    written = []
    for name, row in table("guesses").items():
        made = judge_of({"judge": name, **row})
        written.append(f"## {name}")
        for changes in row["traces"]:
            what = changes if "turns" in changes else {"changes": changes}
            trace = made.prepare(trace_of({"trace": row["trace"], **what}))
            guesses = [made.heuristic(trace, prompt) for prompt in made.prompts(trace)]
            written.append(f"{json.dumps(changes, ensure_ascii=False)}\n  {json.dumps(guesses, ensure_ascii=False)}")
    text = "\n".join(written).encode("utf-8", "replace").decode()
    check_golden(Path(__file__).with_name("golden_guesses.txt"), f"{text}\n")


def test_settings_have_a_version_of_their_own_if_they_say_something_else_and_wrong_ones_are_refused() -> None:
    for name, rows in TABLES["settings"].items():
        judge = JUDGES[name]
        assert {judge.configured(values).version for values in rows["default"]} == {judge.version}, name
        groups = [{judge.configured(values).version for values in group} for group in rows["others"]]
        assert [len(versions) for versions in groups] == [1] * len(groups), name
        assert len({judge.version, *(version for versions in groups for version in versions)}) == 1 + len(groups), name
        for group in rows["others"]:
            assert judge.configured(group[0]).configured({}).version == judge.version, name
        for values in rows["refused"]:
            with pytest.raises(msgspec.ValidationError):
                judge.configured(values)


GRADED = table("graded")


def test_the_shape_of_a_text_is_known() -> None:
    cases = {**GRADED["shapes"], "[" * 100_000: "plain text"}
    assert {text: shape(text) for text in cases} == cases


LINES = "score: 4\njustification: It is so."
one_line = st.text().map(lambda text: " ".join(text.split()))


def graded(score: int = 4, justification: str = "It is so.") -> Mapping[str, object]:
    return {"justification": justification, "score": score}


class TestReadingOfGrades:
    def test_each_answer_is_read_as_meant_or_refused(self) -> None:
        for kind in ("object", "lines", "object and lines"):
            assert misread(read, GRADED[kind]) == {}, kind

    @given(st.integers(), one_line)
    @settings(deadline=None)
    def test_two_lines_are_read_whatever_the_justification_says(self, score: int, said: str) -> None:
        assume(said.strip(" `*") == said != "" and "{" not in said)
        text = f"score: {score}\njustification: {said}"
        if 1 <= score <= 5:
            assert read(text) == graded(score, said)
        else:
            with pytest.raises(AnswerError):
                read(text)

    def test_errors_name_keys_and_forms_but_no_text(self) -> None:
        for text, error in GRADED["errors"].items():
            with pytest.raises(AnswerError) as caught:
                read(text)
            assert str(caught.value) == error

    def test_a_share_becomes_a_grade(self) -> None:
        cases = {0.0: 1, 0.19: 1, 0.2: 2, 0.4: 3, 0.6: 4, 0.79: 4, 0.8: 5, 1.0: 5}
        assert {share: grade(share) for share in cases} == cases

    def test_long_texts_without_an_answer_are_given_up_within_a_second(self) -> None:
        pairs = "score: 5\njustification: {\n" * 2_400 + "score: 1"
        for text in ("score: 5\nscore: 4\n" * 3_500, pairs, "justification " * 4_500, LINES * 9_000):
            began = time.thread_time()
            assert outcome(read, text) == "InvalidAnswerError"
            assert time.thread_time() - began < 1, text[:20]


RULE = "A changed date fails."
DATED = msgspec.structs.replace(SHORT, guidelines=None, messages=None)


class TestGuidance:
    def test_guidance_stands_before_the_form_of_the_answer_in_every_built_in_judge(self) -> None:
        for name, base in ASKING.items():
            plain, guided = (define(name, {"based_on": name, "guidance": rules}) for rules in ([], [RULE]))
            assert (plain.version, plain.fixed_parts) == (base.version, base.fixed_parts), name
            assert guided.version != base.version, name
            for before, after in zip(base.fixed_parts, guided.fixed_parts, strict=True):
                assert f"1. {RULE}\n\n{MATERIAL_RULES}" in after, name
                assert not after.startswith("Guidance"), name
                assert after.endswith(before.rpartition(MATERIAL_RULES)[2]), name
            trace = base.prepare(DATED)
            if not base.missing(trace):
                pairs = zip(base.prompts(trace), guided.prompts(trace), strict=True)
                assert all(each.blocks == other.blocks and RULE in other.fixed for each, other in pairs), name

    def test_a_judge_based_on_another_takes_its_place_or_has_a_name_of_its_own(self) -> None:
        configured = load_judges({"groundedness": {"based_on": "groundedness", "guidance": [RULE]}})
        assert RULE in configured["groundedness"].fixed_parts[0]
        assert len(configured) == len(catalogue())
        strict = load_judges({"strict": {"based_on": "ragbench", "settings": {"empty_completeness": 1.0}}})["strict"]
        assert strict.metric_names == catalogue()["ragbench"].metric_names
        assert strict.settings.empty_completeness == 1.0
        own = define("own", {"based_on": "groundedness", "model": "large", "temperature": 0.5})
        assert (own.metric_names, own.model, own.temperature) == (("own",), "large", 0.5)
        (prompt,) = own.prompts(DATED)
        reading = own.score(DATED, [AnsweredPrompt(prompt, own.read('{"rationale": "r", "result": "yes"}'))])
        assert [(score.metric, score.passed) for score in reading.scores] == [("own", True)]
        with pytest.raises(DefinitionError, match="groundedness is the name of a built-in judge"):
            load_judges({"groundedness": {"based_on": "faithfulness"}})

    def test_judges_in_words_have_guidance_too(self) -> None:
        choosing = {"custom_prompt": "Is {{ outputs }} [[polite]] or [[rude]]?", "pass": ["polite"]}
        for words in ({"instructions": "Is {{ outputs }} polite?"}, choosing):
            judge = define("polite", {**words, "guidance": [RULE, "B\n c"]})
            assert f"1. {RULE}\n2. B c\n\n{MATERIAL_RULES}" in judge.fixed_parts[0]
        assert RULE in define("steps", {"instructions": "Does {{ trace }} loop?", "guidance": [RULE]}).fixed_parts[0]


FULL = TRACES["full"]


class TestTemplateFiles:
    def test_the_published_form_is_read_once(self) -> None:
        template = template_file.parse(FACTS)
        assert template.variables == ("user_request", "context_document", "response")
        assert [part.role for part in template.parts] == [None]
        assert template.parts[0].text.startswith("Your job is to see")
        assert template.parts[0].text.endswith("The answer: {{response}}")
        assert template.metadata == TABLES["metadata"], "as it is written; nothing of it is computed"
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


class TestTemplates:
    def test_a_template_that_says_itself_how_to_answer_or_is_filled_inline_is_a_judge_of_its_own(self) -> None:
        own, inline = (asking("answer", **fill, answer={"form": "template"}) for fill in ({}, {"fill": "inline"}))
        assert len({made.version for made in (own, inline, asking("answer"))}) == 3

    def test_the_lexical_model_answers_every_form(self) -> None:
        for name in ("result", "yes_no", "graded", "relevance_truth_completeness", "facts_grounding", "ragbench"):
            made = asking("question", "documents", "answer", answer={"as": name})
            for trace in (FULL, LONG):
                assert in_loop(evaluate(made, trace, LexicalModel())).outcome == "scored", name

    def test_documents_beyond_a_bound_and_those_that_an_inline_template_has_no_room_for_are_left_out(self) -> None:
        many = msgspec.structs.replace(FULL, context=[f"Document {number}" for number in range(103)])
        model = ScriptedModel(['{"rationale": "So.", "result": "yes"}'], ROOMY)
        assessment = in_loop(evaluate(asking("question", "doc"), many, model))
        assert (len(assessment.calls), assessment.details["documents_left_out"]) == (100, 3)
        made = judge(yaml("{{ documents }} " * 20, ["documents"]), {"fill": "inline", "answer": {"form": "template"}})
        trace = Trace(trace_id="1", service="s", output="", context=["a " * 100, "b " * 100])
        model = ScriptedModel(['{"result": "yes"}'], ModelSettings("scripted", max_input_tokens=2000))
        assert in_loop(evaluate(made, trace, model)).details == {"left_out": {"context": 1}}

    def test_the_description_is_shown_and_metadata_changes_no_version(self) -> None:
        assert judge(FACTS, FACTS_FORM).asks == "Does each sentence of the answer stand in its source?"
        assert judge(FACTS, {**FACTS_FORM, "asks": "Is it so?"}).asks == "Is it so?"
        assert asking("answer").asks == "Asks what mine.yaml says."
        other = FACTS.replace("version: 1.0", "version: 2.0").replace("temperature: 0", "temperature: 1")
        assert judge(other, FACTS_FORM).version == judge(FACTS, FACTS_FORM).version
        template = metadata_of({"template": {"file": "facts.yaml", "text": other}})
        assert (template["file"], dict(template["metadata"])["version"]) == ("facts.yaml", "2.0")
        assert metadata_of({"instructions": "Is {{ outputs }} polite?"}) is None
