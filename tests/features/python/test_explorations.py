"""How explorations and judges in code went, in metrics; and what the latter do not learn."""

from typing import Any

import pytest
from code_judges import FILE
from support.stage_parts import make_verdict

from judges.core.model import ModelSettings
from judges.features.python import protocol as environment
from judges.features.python.installed import make
from judges.registry import catalogue
from worker.core.config.reading import named_variables
from worker.core.config.settings import Settings
from worker.core.export.prometheus import VerdictCounter
from worker.core.queue.ledger import OutboxEntry
from worker.core.telemetry.metrics import EXPLORATION_ENDS, Metrics
from worker.features.python.feature import FEATURE as PYTHON


def explored(*details: dict[str, Any]) -> Metrics:
    metrics = Metrics(Settings())
    counted = VerdictCounter(Settings(), metrics)
    for number, detail in enumerate(details):
        counted.count(OutboxEntry(f"{number}-0", "j", make_verdict(number, details=detail)))
    return metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"tracejudge_{name}", labels)


def test_explorations_are_counted_with_rounds_and_ends() -> None:
    course = {"rounds": 4, "tool_calls": {"look": 4}, "tool_errors": 1, "ended_by": "answer"}
    metrics = explored(
        {"exploration": course},
        {"exploration": {**course, "rounds": 30, "tool_errors": 0, "ended_by": "max_rounds"}},
        {"exploration": {**course, "ended_by": None}},
        {},
    )
    assert ends(metrics) == {**dict.fromkeys(EXPLORATION_ENDS, 0), "answer": 1, "max_rounds": 1, "nothing": 1}
    assert value(metrics, "exploration_rounds_sum", judge="safety") == 38
    assert value(metrics, "exploration_rounds_count", judge="safety") == 3
    assert value(metrics, "exploration_tool_errors_total", judge="safety") == 2
    for other in (None, "x", {"rounds": "x", "ended_by": ["a"], "tool_errors": -1}):
        metrics = explored({"exploration": other})
        assert sum(ends(metrics).values()) == isinstance(other, dict), "those of another version make no series"
        assert value(metrics, "explorations_total", judge="safety", ended_by="['a']") is None


def ends(metrics: Metrics) -> dict[str, float]:
    names = EXPLORATION_ENDS
    return {end: value(metrics, "explorations_total", judge="safety", ended_by=end) or 0 for end in names}


def test_judges_in_code_are_measured_as_models_are() -> None:
    metrics = Metrics(Settings())
    judge = make("has_link", {"code": f"{FILE}:has_link"})
    assert PYTHON.prepare is not None
    PYTHON.prepare(Settings(), {judge.name: judge, **catalogue()}, metrics)
    observer = judge.run.observer  # type: ignore[union-attr]
    observer.begins()
    assert value(metrics, "judge_in_flight", judge_model="code") == 1
    observer.ends("ok", 0.5)
    observer.begins()
    observer.ends("judge_failed", 2.0)
    assert value(metrics, "judge_in_flight", judge_model="code") == 0
    seconds = {
        status: value(metrics, "judge_request_duration_seconds_sum", judge_model="code", status=status)
        for status in ("ok", "judge_failed")
    }
    assert seconds == {"ok": 0.5, "judge_failed": 2.0}


def test_secrets_of_ours_are_kept_from_judges_in_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_withheld", set())
    models = {"default": ModelSettings(model="m", api_key_env="PAID"), "free": ModelSettings(model="n")}
    page = {"metrics_token_env": "PAGE", "metrics_user": "u", "metrics_password_env": "WORD"}
    environment.withhold(*named_variables(Settings(models=models, **page)))  # type: ignore[arg-type]
    there = dict.fromkeys(("PAID", "PAGE", "WORD", "HOME"), "x")
    assert environment.passed_on(there) == {"HOME": "x"}
    assert environment.passed_on(there, ("PAID",)) == {"PAID": "x", "HOME": "x"}


"""Time limit in real time: enough for a millisecond of work on a busy machine."""
