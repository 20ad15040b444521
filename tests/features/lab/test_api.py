"""The judges in Python: one call, rows and DataFrames, with and without an event loop, against a real endpoint."""

import asyncio
import json
import logging
import multiprocessing
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import CliRunner
from support.endpoint import ChatEndpoint
from support.processes import wait_until
from support.replies import Reply, answers_json, failing, gathering, hangs, sequence, yes_no
from support.tables import read_table

import judges
from judges import evaluate, evaluate_aio, evaluate_all, evaluate_all_aio, groundedness, load_judge, make_judge, safety
from judges.catalog import catalogue
from judges.core.model import ModelSettings
from judges.features.lab import api
from judges.models.registry import ModelSettingsError
from judges.models.scripted import ScriptedModel
from tracejudge import Trace
from worker.cli import cli

ROW: Mapping[str, Any] = {"inputs": "Who?", "outputs": "Ada.", "context": ["It was Ada."]}
PRICE = {"input": 1000.0, "output": 10000.0}
TABLES = read_table(__file__, "api_files")


def at(endpoint: ChatEndpoint, **settings: object) -> dict[str, object]:
    return {"base_url": endpoint.base_url, "model": "m", **settings}


def test_cached_tokens_are_charged_at_their_own_price(endpoint: ChatEndpoint) -> None:
    """Counts of OpenAI, OpenRouter and DeepSeek; those that cannot be are ignored."""
    for more, usd in TABLES["cached tokens"]:
        usage = {"prompt_tokens": 1000, "completion_tokens": 10, **more}
        choice = {"message": {"content": '{"rationale": "So.", "result": "yes"}'}}
        endpoint.behaviour = Reply(raw=json.dumps({"choices": [choice], "usage": usage}))
        for cached_input in (1.0, None):
            price = {"input": 10.0, "output": 1.0, "cached_input": cached_input}
            verdict = groundedness(**ROW, model=at(endpoint, price=price))
            expected = (usd if cached_input else 1000 * 10.0) + 10
            assert verdict.cost_usd == pytest.approx(expected / 1e6), (more, cached_input)
            assert (verdict.input_tokens, verdict.outcome) == (1000, "scored"), more


def test_a_verdict_has_no_truth_value_and_is_a_dict_for_json() -> None:
    verdict = groundedness(**ROW, model="lexical")
    rows = evaluate_all([ROW], [groundedness, safety], "lexical")
    verdicts, none, score = evaluate([ROW], groundedness, "lexical"), evaluate([], safety, "lexical"), verdict.metrics
    parts = verdicts[:1], verdicts + verdicts, verdicts.copy(), rows[:0], rows[0].copy(), rows[0] | {"again": verdict}
    for value in (verdict, verdicts, rows, rows[0], none, score["groundedness"], *parts):
        with pytest.raises(TypeError, match=r"use its attribute \.passed"):
            bool(value)
    plain = verdict.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert (plain["passed"], plain["metrics"]["groundedness"]["value"], plain["judge"]) == (True, 1.0, "groundedness")


def test_a_judge_file_of_every_kind_can_be_loaded(tmp_path: Path) -> None:
    for name, text in TABLES["judges"].items():
        (tmp_path / name).write_text(text)
    for name in TABLES["judges"]:
        if name.endswith(".toml"):
            judge = load_judge(tmp_path / name, "lexical")
            verdict = judge(inputs="Who?", outputs="Ada, kindly.")
            assert (judge.name, verdict.outcome) == (name.removesuffix(".toml"), "scored"), (name, verdict)
    for name, (text, expected) in TABLES["mistakes"].items():
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=re.escape(expected)):
            load_judge(str(tmp_path / name))


def test_a_call_gives_a_frozen_verdict_with_scores_and_cost(endpoint: ChatEndpoint) -> None:
    verdict = groundedness(**ROW, model=at(endpoint, price=PRICE))
    expected: dict[str, object] = {"judge": "groundedness", "outcome": "scored", "value": 1.0, "passed": True}
    expected |= {"result": "yes", "attempts": 1, "input_tokens": 100, "output_tokens": 20, "judge_model": "m"}
    expected |= {"rationale": "It is so.", "judge_version": catalogue()["groundedness"].version}
    expected |= {"cost_usd": pytest.approx(0.3)}
    assert {name: getattr(verdict, name) for name in expected} == expected
    assert verdict.metrics["groundedness"].passed
    with pytest.raises(AttributeError):
        verdict.value = 0.0
    several = judges.facts_grounding(**ROW, model="lexical")
    assert (several.value, set(several.metrics)) == (None, {"grounded", "supported_share"})
    assert several.passed == several.metrics["grounded"].passed, "it passes when all metrics with a rule do"


def test_api_and_command_do_the_same(endpoint: ChatEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    endpoint.behaviour = sequence(answers_json({"reasons": "none"}), yes_no("no"))
    Path("rows.jsonl").write_text(json.dumps(ROW), encoding="utf-8")
    command = ["evaluate", "rows.jsonl", "--judge", "groundedness", "--output", "out.jsonl"]
    models = json.dumps({"default": at(endpoint, price=PRICE)})
    ran = CliRunner().invoke(cli, command, env={"TRACEJUDGE_MODELS": models})
    assert ran.exit_code == 0, ran.output
    by_command = json.loads(Path("out.jsonl").read_text(encoding="utf-8"))
    sent = [_without_key(call.body) for call in endpoint.calls]
    endpoint.forget()
    endpoint.behaviour = sequence(answers_json({"reasons": "none"}), yes_no("no"))
    verdict = groundedness(**ROW, model=at(endpoint, price=PRICE))
    assert len(sent) == 2, "an unreadable answer is asked for once more"
    assert [_without_key(call.body) for call in endpoint.calls] == sent
    for name in ("outcome", "rationale", "judge_version", "cost_usd", "attempts", "input_tokens", "output_tokens"):
        assert getattr(verdict, name) == by_command[name], name
    assert [verdict.value, verdict.passed] == [by_command["scores"][0][name] for name in ("value", "passed")]


def _without_key(body: dict[str, Any]) -> str:
    """Drop the random key of the lines that delimit the material."""
    return re.sub(r"\b[0-9a-f]{8,32}\b", "KEY", json.dumps(body))


def test_calls_work_inside_a_running_event_loop_and_in_several(endpoint: ChatEndpoint) -> None:
    model = at(endpoint)
    endpoint.behaviour = gathering(3, yes_no())

    async def concurrent() -> list[bool | None]:
        verdicts = await asyncio.gather(*(groundedness.aio(**ROW, model=model) for _ in range(3)))
        # What a cell of a notebook does: a blocking call while a loop runs.
        return [each.passed for each in (*verdicts, groundedness(**ROW, model=model))]

    assert asyncio.run(concurrent()) == [True] * 4
    endpoint.behaviour = yes_no("no")
    assert asyncio.run(concurrent()) == [False] * 4, "the connections of the first loop serve the second"


def test_a_cancelled_call_ends_its_request(endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = hangs()

    async def cancel() -> None:
        call = asyncio.ensure_future(groundedness.aio(**ROW, model=at(endpoint)))
        await asyncio.to_thread(wait_until, lambda: endpoint.in_flight == 1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert call.cancelled()
        await asyncio.to_thread(wait_until, lambda: endpoint.in_flight == 0)

    asyncio.run(cancel())


def test_refused_requests_are_sent_again_and_cost_nothing(
    endpoint: ChatEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.behaviour = sequence(failing(429, "slow down", retry_after=0.01), failing(503, "down"), yes_no())
    with caplog.at_level(logging.WARNING, "judges"):
        verdict = groundedness(**ROW, model=at(endpoint, label="limited", price=PRICE))
    assert (verdict.passed, verdict.attempts, len(endpoint.calls)) == (True, 3, 3)
    assert verdict.cost_usd == pytest.approx(0.3)
    assert "slow down" in caplog.text


def test_a_failure_is_a_verdict_and_not_an_error(endpoint: ChatEndpoint) -> None:
    refused = failing(400, "no such thing")
    endpoint.behaviour = lambda call: refused if "Bob" in call.text() else yes_no()
    good, bad, empty = evaluate([ROW, {**ROW, "outputs": "Bob."}, {"inputs": "Who?"}], groundedness, at(endpoint))
    assert good.passed
    assert (bad.outcome, bad.reason, bad.value, bad.passed) == ("unscored", "bad_request", None, None)
    assert "no such thing" in str(bad.note)
    assert (empty.reason, empty.note) == ("missing_input", "the trace has no output")


def test_rows_come_as_traces_dicts_and_documents_of_other_libraries(endpoint: ChatEndpoint) -> None:
    @dataclass
    class Found:
        page_content: str

    rows: list[Any] = [
        Trace(trace_id="t", service="s", input="Who?", output="Ada.", context=["It was Ada."]),
        {"question": "Who?", "response": "Ada.", "retrieved_context": [{"content": "It was Ada."}]},
        {"inputs": "Who?", "outputs": {"response": "Ada."}, "context": [Found("It was Ada.")], "row": float("nan")},
    ]
    assert [verdict.passed for verdict in evaluate(rows, groundedness, at(endpoint))] == [True] * 3
    assert len({json.dumps(call.body["messages"]) for call in endpoint.calls}) == 1, "all are the same question"


def test_several_judges_have_verdicts_by_name_and_may_have_models_of_their_own(endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = lambda call: yes_no("yes" if "polite" in call.text() else "no")
    tone = make_judge("tone", "Is {{ outputs }} polite?", at(endpoint, label="own"))
    several = [groundedness.configured(model=at(endpoint)), tone, safety.configured(model="lexical")]
    verdicts = evaluate_all([ROW, ROW], several)
    assert [list(verdicts) for verdicts in verdicts] == [["groundedness", "tone", "safety"]] * 2
    assert [assessment.judge_model for assessment in verdicts[0].values()] == ["m", "own", "lexical"]
    assert [assessment.passed for assessment in verdicts[0].values()] == [False, True, True]
    (by_judge,) = evaluate_all([ROW], tone, "lexical")
    assert by_judge["tone"].judge_model == "lexical", "the model of a call wins"
    endpoint.forget()
    turns = [{"inputs": f"Question {n}", "outputs": f"Answer {n}", "session_id": "a"} for n in range(3)]
    alone = {"inputs": "Alone", "outputs": "Yes."}
    of_rows = evaluate([*turns, alone], judges.conversation_completeness, at(endpoint))
    assert len(endpoint.calls) == 2, "a conversation is judged once for all its rows"
    assert of_rows[0] is of_rows[1] is of_rows[2] is not of_rows[3]
    assert all(f"Answer {n}" in endpoint.calls[0].text() for n in range(3))


def test_results_of_own_judges(endpoint: ChatEndpoint) -> None:
    # Result or type (as in MLflow), what the model answers, then value, passed and result of the verdict.
    cases: list[tuple[object, object, float | None, bool | None, object]] = [
        ({"labels": {"good": 1, "fair": 0.5, "bad": 0}, "pass": ["good"]}, "fair", 0.5, False, "fair"),
        (Literal["yes", "no"], "yes", 1.0, True, "yes"),
        (Literal["No", "Yes"], "No", 0.0, False, "No"),
        (Literal["good", "fair", "poor"], "fair", None, None, "fair"),
        (Literal[1, 2, 3, 4, 5], 2, 0.25, None, 2),
        (Literal[True, False], False, 0.0, False, False),
        (bool, True, 1.0, True, True),
        (str, "Well said.", None, None, "Well said."),
        (int, 7, None, None, 7),
        (float, "0.8", None, None, 0.8),
        (dict[str, int], {"a": 1}, None, None, {"a": 1}),
    ]
    options: Any = {"description": "Is it polite?", "inference_params": {"temperature": 0.5}}
    for number, (kind, answer, *expected) in enumerate(cases):
        endpoint.behaviour = answers_json({"rationale": "It is so.", "result": answer})
        is_type = not isinstance(kind, str | dict)
        keys = ["result"] if not is_type or kind in {bool, str} else []
        for key in [*keys, "feedback_value_type"] if is_type else keys:
            judge = make_judge(f"tone_{number}", "Rate {{ outputs }}.", at(endpoint), **{key: kind}, **options)
            verdict = judge(outputs="Well.")
            assert [verdict.outcome, verdict.value, verdict.passed, verdict.result] == ["scored", *expected], kind
            assert type(verdict.result) is type(expected[2]), kind
            assert endpoint.calls[-1].body["temperature"] == 0.5, kind
    declared = make_judge("tone", "Is {{ outputs }} polite?", result=Literal["no", "yes"]).definition
    assert [metric.pass_rule for metric in declared.metrics] == ["yes"]


def test_settings_make_another_version(endpoint: ChatEndpoint) -> None:
    own = judges.guidelines.configured(guidelines=["Be brief."], model=at(endpoint))
    verdict = own.configured(fields=["output"])(outputs="Yes.", inputs="Is it?")
    assert verdict.passed
    assert "Be brief." in endpoint.calls[0].text(), "earlier settings are kept"
    assert "Is it?" not in endpoint.calls[0].text()
    assert verdict.judge_version != judges.guidelines.definition.version
    assert judges.guidelines.model is None, "the original is unchanged"


def test_mistakes_name_the_fix(monkeypatch: pytest.MonkeyPatch, endpoint: ChatEndpoint) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    row, lacking = {**ROW, "model": "lexical"}, {"expectations": {"expected_respons": "x"}}
    call: Any = groundedness
    rate: Any = evaluate
    make: Any = partial(make_judge, name="a", instructions="Is {{ outputs }}?")
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ModelSettingsError, 'write "openai:/NAME"', lambda: call(**ROW, model="gpt-4.1")),
        (ModelSettingsError, "is of type int", lambda: call(**ROW, model=3)),
        (ModelSettingsError, "OPENAI_API_KEY is not set; export it", lambda: call(**ROW, model="openai:/m")),
        (ModelSettingsError, "known are provider,", lambda: call(**ROW, model={"model": "m", "url": "x"})),
        (ModelSettingsError, "name its variable", lambda: call(**ROW, model=at(endpoint, api_key="s3cret"))),
        (ValueError, 'give model="openai:/NAME"', lambda: call(**ROW)),
        (ValueError, "type object cannot be read", lambda: call(outputs=object(), model="lexical")),
        (ValueError, "row 1: ", lambda: rate([ROW, {"context": [{}]}], call, "lexical")),
        (ValueError, "the same name", lambda: evaluate_all([ROW], [safety, safety], "lexical")),
        (ValueError, "part: unknown key; did you mean parts?", lambda: safety.configured(part=["input"])),
        (ValueError, "temperature: must be a number", lambda: safety.configured(temperature=3)),
        (ValueError, "guidelines: a value of type object", lambda: call(**row, expectations={"guidelines": object()})),
        (ValueError, "has no settings; remove pass_at", lambda: judges.correctness.configured(pass_at=3)),
        (ValueError, "feedback_value_type: must be bool, dict, float,", lambda: make(feedback_value_type=set)),
        (ValueError, "value_type: means the same", lambda: make(result="text", feedback_value_type=bool)),
        (ValueError, 'write it as result={"integer": [1, 5], "pass_at": 4}', lambda: make(result=int)),
        *((ValueError, fix, partial(make, **arguments)) for arguments, fix in TABLES["not made"]),
        (TypeError, "did you mean outputs?", lambda: call(**row, ouputs="x")),
        (TypeError, "groundedness(inputs=…, outputs=…", lambda: call("Who?", "Ada.", model="lexical")),
        (TypeError, "did you mean expected_response?", lambda: call(**ROW, **lacking)),
        (TypeError, "give a list of rows", lambda: rate(ROW, call, "lexical")),
        (TypeError, "read the file first", lambda: rate(Path("traces.jsonl"), call, "lexical")),
        (TypeError, "must be a dict with inputs", lambda: rate(["text"], call, "lexical")),
        (TypeError, "evaluate_all several", lambda: rate([ROW], [call], "lexical")),
        (TypeError, "no argument 'contexts'", lambda: call(**{**row, "context": None}, contexts=[3])),
    ]
    for kind, fix, act in cases:
        with pytest.raises(kind) as caught:
            act()
        assert fix in str(caught.value), (fix, caught.value)
        assert "s3cret" not in str(caught.value)


def test_a_pandas_frame_gains_columns_and_keeps_its_index() -> None:
    pd, numpy = pytest.importorskip("pandas"), pytest.importorskip("numpy")
    columns = {
        "question": ["Who?", "When?", None],
        "response": ["It was Ada.", "It was in 1901.", "Nobody."],
        "contexts": ['["It was Ada."]', numpy.array(["It was in 1843."]), None],
        "note": [1.0, float("nan"), pd.NA],
        "user_id": [17, 18, 19],
        "asked": pd.to_datetime(["2026-01-01", None, "2026-01-03"]),
    }
    frame = pd.DataFrame(columns, index=["a", "b", "c"])
    judged = evaluate_all(frame, [groundedness, judges.facts_grounding], "lexical")
    assert (list(frame), list(judged.index)) == (list(columns), ["a", "b", "c"]), "the given frame is unchanged"
    assert judged["groundedness_passed"].tolist() == [True, False, None]
    assert judged["groundedness_value"].isna().tolist() == [False, False, True]
    assert judged["groundedness_reason"]["c"] == "missing_input"
    assert {"facts_grounding_grounded", "facts_grounding_supported_share", "facts_grounding_passed"} <= {*judged}
    again = asyncio.run(evaluate_aio(judged, groundedness, "lexical"))
    assert again.equals(judged), "judging again replaces the columns"
    odd = pd.DataFrame({"inputs": ["Who?"], "when": [object()]})
    for rows, fix in (
        (odd, "when: a value of type object cannot be read"),
        (odd[["when"]].astype(str), "rename some to inputs, outputs"),
    ):
        with pytest.raises(ValueError, match=fix):
            evaluate(rows, safety, "lexical")


def test_a_polars_frame_gains_columns() -> None:
    polars = pytest.importorskip("polars")
    rows = {"inputs": ["Who?", None], "outputs": ["It was Ada.", "x"], "context": [["It was Ada."]] * 2}
    frame = polars.DataFrame(rows)
    judged = evaluate(evaluate(frame, groundedness, "lexical"), groundedness, "lexical")
    assert (judged["groundedness_passed"].to_list(), judged.columns[:3]) == ([True, None], frame.columns)


def test_a_model_in_python_is_limited_too_and_may_await_a_judge() -> None:
    class Asking(ScriptedModel):
        async def complete(self, request: Any) -> Any:
            with pytest.raises(RuntimeError, match="await its aio"):
                safety(outputs="Yes.", model="lexical")
            assert (await safety.aio(outputs="Yes.", model="lexical")).passed
            return await super().complete(request)

    answer = json.dumps({"rationale": "So.", "result": "yes"})
    model = Asking([answer], ModelSettings(provider="scripted", model="own", max_in_flight=1))
    assert [verdict.passed for verdict in evaluate([ROW] * 3, groundedness, model)] == [True] * 3

    async def both() -> tuple[int, int]:
        verdict = await evaluate_aio([ROW] * 2, groundedness, "lexical")
        several = await evaluate_all_aio([ROW] * 2, [groundedness, safety], "lexical")
        return len(verdict), sum(len(each) for each in several)

    assert asyncio.run(both()) == (2, 4)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_has_an_event_loop_of_its_own() -> None:
    assert groundedness(**ROW, model="lexical").passed is not None
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_in_child).get(timeout=30) == "scored"


def _in_child() -> str:
    return groundedness(**ROW, model="lexical").outcome


def test_a_script_ends_at_once_with_connections_open_and_a_module_does_not_load_the_api(endpoint: ChatEndpoint) -> None:
    script = (
        "import asyncio, sys, judges.core.judge, judges.code\n"
        "assert 'judges.features.lab.api' not in sys.modules, 'loaded'\n"
        "from judges import groundedness\n"
        "row = {'inputs': 'Who?', 'outputs': 'Ada.', 'context': ['Ada.']}\n"
        f"model = {{'base_url': {endpoint.base_url!r}, 'model': 'm'}}\n"
        "assert groundedness(**row, model=model).passed\n"
        "assert asyncio.run(groundedness.aio(**row, model=model)).passed\n"
    )
    command = [sys.executable, "-W", "always", "-c", script]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_every_built_in_judge_is_exported_with_its_description() -> None:
    stub = Path(judges.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    submodules = {match.name for match in pkgutil.iter_modules(judges.__path__)}
    for name, judge in catalogue().items():
        exported = getattr(judges, name)
        assert exported.definition is judge
        assert name in dir(judges)
        assert name not in submodules, f"a module judges.{name} would hide the judge"
        for words in (judge.asks, *judge.metric_names, *(metric.scale for metric in judge.metrics)):
            assert words in exported.__doc__, (name, words)
        assert f'{name}: JudgeFunction\n"""{exported.__doc__}' in stub, "run `make generate`"
    assert sorted(judges._API) == sorted(api.__all__)
    for name in api.__all__:
        assert name not in submodules, name
        assert getattr(judges, name) is getattr(api, name)
    with pytest.raises(AttributeError):
        _ = judges.groundednes
