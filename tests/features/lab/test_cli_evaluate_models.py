"""`tracejudge evaluate` with several models: a verdict by each, one that combines them, and a summary of all."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cli_parts import Run, labelled, words, write_lines

from judges.calling.runs import JudgeRunner
from judges.core.model import ChatRequest, ChatResponse, ModelSettings
from judges.core.verdict import Verdict, evaluation_id
from judges.models.scripted import ScriptedModel
from judges.registry import catalogue
from tracejudge import Trace
from worker.base.commands.trace_files import Output
from worker.core.config.graders import make_panel
from worker.core.config.settings import Settings
from worker.features.lab.offline import Offline, OfflineGraders, Panel

PANEL = "majority(a,b,c)"
TOGETHER = ("--model", "two", "--model", "one", "--model", "three", "--combine", "majority")


def answering(*results: str) -> list[dict[str, str]]:
    return [{"text": json.dumps({"rationale": "So.", "result": result})} for result in results]


@pytest.fixture
def _models(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - it makes the place
    """Make three models answer as scripted, in the order in which they are asked."""
    answers_by_judge = {"one": ("b", ["yes", "yes"]), "two": ("a", ["yes", "no"]), "three": ("c", ["no", "no"])}
    models: dict[str, Any] = {}
    for name, (label, results) in answers_by_judge.items():
        script = write_lines(f"{name}.jsonl", answering(*results))
        models[name] = {"provider": "scripted", "model": label, "script": script, "max_in_flight": 1}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps(models | {"default": {"provider": "lexical"}}))


def traces() -> str:
    return write_lines("t.jsonl", [labelled(None, trace_id=f"{number}", id=f"{number}") for number in range(2)])


def verdicts() -> list[Verdict]:
    return [msgspec.json.decode(line, type=Verdict) for line in Path("out.jsonl").read_bytes().splitlines()]


@pytest.mark.usefixtures("_models")
def test_each_model_has_a_verdict_and_one_more_combines_them(run: Run) -> None:
    ended = run("evaluate", traces(), "--judge", "safety", *TOGETHER, "--output", "out.jsonl", "--json")
    assert ended.code == 0
    judged = verdicts()
    assert [(verdict.trace_id, verdict.judge_model) for verdict in judged] == [
        (trace, model) for trace in "01" for model in ("a", "b", "c", PANEL)
    ]
    combined = [verdict for verdict in judged if verdict.judge_model == PANEL]
    assert [result.scores[0].passed for result in combined] == [True, False]
    assert {result.metrics for result in combined} == {("safety", "disagreement")}
    assert {(result.calls, result.attempts, result.cost_usd) for result in combined} == {((), 0, 0.0)}
    trace, version = Trace(trace_id="0", service="shop", output="", id="0"), catalogue()["safety"].version
    assert combined[0].evaluation_id == evaluation_id(trace, "0", judge="safety", version=version, judge_model=PANEL)

    rows = {row["model"]: row["metrics"] for row in ended.document["judges"]}
    assert rows["a"]["safety"] == {"scored": 2, "mean": 0.5, "share_passed": 0.5}
    assert rows[PANEL]["safety"] == {"scored": 2, "mean": 0.5, "share_passed": 0.5}
    assert rows[PANEL]["disagreement"] == {"scored": 2, "mean": pytest.approx(2 / 3), "share_passed": None}
    assert (ended.document["model"], ended.document["cost_usd"]) == ("a, b, c", None)
    assert {row["cost_usd"] for row in ended.document["judges"]} == {None}


def test_a_model_that_is_named_needs_no_default_beside_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"provider": "scripted", "model": "m", "script": write_lines("one.jsonl", answering("yes"))}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"other": model}))
    file = write_lines("t.jsonl", [labelled("yes")])
    assert run("evaluate", file, "--judge", "safety", "--model", "other").code == 0
    assert run("judges", "test", "safety", file, "--label", "safe", "--model", "other").code == 0
    assert run("judges", "show", "safety").code == 0
    assert run("evaluate", file, "--judge", "safety").complaint == (
        "tracejudge: there is no [models.default]; known are other"
    )
    own = Path("own.toml")
    own.write_text('instructions = "Is {{ outputs }} polite?"\nmodel = "othr"\n', encoding="utf-8")
    assert run("evaluate", file, "--judge", own, "--model", "other").code == 0
    message = "own.toml: model: there is no [models.othr]; did you mean other?"
    assert message in run("evaluate", file, "--judge", own).complaint
    assert message in run("judges", "test", own, file, "--label", "safe").complaint
    monkeypatch.setenv("TRACEJUDGE_JUDGES_FOLDER", ".")
    assert message in run("evaluate", file, "--judge", "own").complaint
    monkeypatch.delenv("TRACEJUDGE_JUDGES_FOLDER")
    assert "models: none is the default" in run("replay", "--since", "1h", "--judge", "safety").complaint


@pytest.mark.usefixtures("_models")
def test_the_summary_names_the_model_of_each_line(run: Run) -> None:
    ended = run("evaluate", traces(), "--judge", "safety", *TOGETHER)
    assert ended.code == 0
    for name in ("a", "b", "c", PANEL):
        assert f"safety by {name}" in ended.out
    told = words(ended.out)
    assert told.count(" tokens, no price set, ") == 3
    assert told.endswith(f"safety by {PANEL}: 2 scored, 0 abstained, unscored none"), "the models bear the cost"


@pytest.mark.usefixtures("_models")
def test_without_a_way_to_combine_each_model_speaks_for_itself(run: Run) -> None:
    arguments = ("--model", "one", "--model", "default", "--output", "out.jsonl")
    assert run("evaluate", traces(), "--judge", "safety", *arguments).code == 0
    assert [verdict.judge_model for verdict in verdicts()] == ["b", "lexical"] * 2


@pytest.mark.usefixtures("_models")
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (("--model", "one", "--combine", "mean"), "--combine needs several models"),
        (("--model", "one", "--model", "one"), "names a judge model twice"),
        (("--model", "one", "--model", "two", "--combine", "median"), "'median' is not one of"),
        (("--model", "one", "--model", "tow"), "there is no [models.tow]"),
    ],
)
def test_models_that_cannot_be_combined_are_wrong_usage(run: Run, value: tuple[str, ...], message: str) -> None:
    ended = run("evaluate", traces(), "--judge", "safety", *value)
    assert ended.code == 2
    assert message in ended.err


class Hanging(ScriptedModel):
    """Answers yes to some texts, and never answers the others."""

    def __init__(self, name: str, *texts: str) -> None:
        super().__init__([answering("yes")[0]["text"]], ModelSettings(provider="scripted", model=name))
        self._texts = texts
        self.answered = asyncio.Event()

    async def complete(self, request: ChatRequest) -> ChatResponse:
        if not any(text in request.messages[1].content for text in self._texts):
            await asyncio.Future()
        self.answered.set()
        return await super().complete(request)


async def cut_short(*models: Hanging) -> list[Verdict]:
    """Judge two traces, end it as Ctrl-C does once the last model has answered, and give what was written."""
    members = [JudgeRunner(model) for model in models]
    together = Panel(make_panel("majority", [grader.judge_model for grader in members]), members)
    graders = OfflineGraders(members, {"safety": (*members, together)})
    offline = Offline(
        Settings(), [catalogue()["safety"]], graders, on_invalid_line=lambda *_: None, advance=lambda *_: None
    )
    out = io.BytesIO()
    lines = [labelled(None, trace_id=f"{number}", id=f"{number}", output=f"text {number}") for number in range(2)]
    source = io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    running = asyncio.ensure_future(offline.run(source, Output(out, "out")))
    await models[-1].answered.wait()
    for _ in range(50):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return [msgspec.json.decode(line, type=Verdict) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("others", ["text 0", "text 1"], ids=["of another trace", "of the same trace"])
def test_an_interrupted_run_does_not_combine_incomplete_verdicts(others: str) -> None:
    """What is ready is written; but no verdict is made of what models said on different traces, or only some said."""

    async def run() -> list[Verdict]:
        return await cut_short(Hanging("a", others), Hanging("b", "text 0"), Hanging("c", "text 1"))

    written = [(container.trace_id, container.judge_model) for container in asyncio.run(run())]
    assert written == sorted([(others[-1], "a"), ("0", "b"), ("1", "c")])
