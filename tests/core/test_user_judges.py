"""Judges of a user on live traffic: instructions and a published template, from a folder, over HTTP."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline, make_traces

from judges.registry import load_judges
from worker.core.config.loading import load

TEMPLATE = Path(__file__).parents[1] / "judges" / "templates" / "facts.yaml"
POLITE = """\
instructions = "How politely does {{ outputs }} answer {{ inputs }}?"
result = { integer = [1, 5], pass_at = 4 }
"""
FACTS = 'template = "facts.yaml"\nanswer = { as = "facts_grounding" }\n'
RULES = [{"name": "mine", "judges": ["politeness", "sources_kept"]}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two judges, and a file that is not a judge."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "politeness.toml").write_text(POLITE, encoding="utf-8")
    (folder / "sources_kept.toml").write_text(FACTS, encoding="utf-8")
    (folder / "facts.yaml").write_bytes(TEMPLATE.read_bytes())
    return folder


def models(endpoint: ChatEndpoint) -> dict[str, object]:
    return {"default": {"provider": "openai", "base_url": endpoint.base_url, "model": "judge-1"}}


def versions(folder: Path) -> Mapping[str, str]:
    settings = load({"TRACEJUDGE_JUDGES_FOLDER": str(folder)})
    return {name: judge.version for name, judge in load_judges(settings.judges).items()}


def answer(sentence: Callable[[str], Mapping[str, Any]]) -> replies.Behaviour:
    """Answer both judges; the template's answer has one sentence about its material."""

    def behaviour(call: replies.Call) -> replies.Reply:
        if "`user_request`" not in call.text():
            return replies.answers_json({"rationale": "Let's think step by step. It is short.", "result": 4})
        text = call.text().rpartition("<<response ")[2].partition("\n")[2].partition("\n<<end")[0]
        return replies.answers(json.dumps(sentence(text)))

    return behaviour


def supported(message: str) -> Mapping[str, Any]:
    return {"sentence": message, "label": "supported", "rationale": "It stands there.", "excerpt": message}


def test_judges_of_a_folder_score_published_traces(pipeline: Pipeline, endpoint: ChatEndpoint, folder: Path) -> None:
    endpoint.behaviour = answer(supported)
    worker = pipeline.worker(rules=RULES, models=models(endpoint), judges_folder=str(folder))
    pipeline.publish(make_traces(5))
    account = pipeline.settled(5)
    assert (account.chosen, account.scored, account.unscored, account.lost) == (10, 10, 0, 0)
    verdicts = [entry.verdict for entry in pipeline.outbox()]
    versions_before = versions(folder)
    assert {(verdict.judge, verdict.judge_version) for verdict in verdicts} == {
        (name, versions_before[name]) for name in ("politeness", "sources_kept")
    }
    scores = {(verdict.judge, score.metric, score.value) for verdict in verdicts for score in verdict.scores}
    assert scores == {
        ("politeness", "politeness", 0.75),
        ("sources_kept", "grounded", 1.0),
        ("sources_kept", "supported_share", 1.0),
    }
    page = worker.counted(15)
    assert page.value("tracejudge_verdicts_total", judge="politeness", metric="politeness", outcome="pass") == 5


def test_an_excerpt_that_is_not_in_the_documents_counts_as_no_support(
    pipeline: Pipeline, endpoint: ChatEndpoint, folder: Path
) -> None:
    endpoint.behaviour = answer(
        lambda message: {**supported(message), "excerpt": "Nobody ever wrote these words here."}
    )
    rules = [{"name": "mine", "judges": ["sources_kept"]}]
    pipeline.worker(rules=rules, models=models(endpoint), judges_folder=str(folder))
    pipeline.publish(make_traces(1))
    assert pipeline.settled(1).scored == 1
    (verdict,) = (entry.verdict for entry in pipeline.outbox())
    assert [score.value for score in verdict.scores] == [0.0, 0.0]
    assert verdict.details["fabricated_evidence"] == 1
    (call,) = endpoint.calls
    system, user = (message["content"] for message in call.body["messages"])
    assert "The request: {{user_request}}" in system
    assert "What is in parcel 0?" in user
    assert "parcel 0" not in system


def test_a_broken_judge_in_the_folder_stops_the_worker_with_one_line(pipeline: Pipeline, folder: Path) -> None:
    (folder / "broken.toml").write_text('instructions = "Is {{ output }} polite?"', encoding="utf-8")
    worker = pipeline.worker(judges_folder=str(folder), wait=False)
    assert worker.program.wait() == 2
    line = f"tracejudge: {folder / 'broken.toml'}: instructions: the variable {{{{ output }}}} is unknown"
    assert worker.program.output.startswith(line)
    assert worker.program.output.count("\n") == 1
