"""Traffic of all kinds at once: what scores, what has none, what is lost, what is refused, and what comes late."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from busy_services import ENVIRONMENT, BusyServices, Flaws, call
from support.otlp import OtlpReceiver, failing
from support.pipeline import Worker
from support.processes import free_port
from whole_picture import JUDGE_MODEL, Picture

import tracejudge

__all__ = ["SERVICE", "motley"]

SERVICE: Final = "shop"
_UNRULED: Final = "unruled"
_LATE: Final = "clerk"
_EACH_PER_S: Final = 10
_FLAWS: Final[Flaws] = {
    ("safety", "bad"): 0.02,
    ("faithfulness", "bad"): 0.2,
    ("groundedness", "unknown"): 0.1,
    ("groundedness", "refusal"): 0.07,
}


@contextmanager
def motley(picture: Picture) -> Iterator[Worker]:
    """Run a worker that judges the traffic until the block ends."""
    with (
        OtlpReceiver(failing(400)) as receiver,
        BusyServices(picture.pipeline, SERVICE, _UNRULED, each_per_s=_EACH_PER_S) as services,
    ):
        services.turn(SERVICE, _FLAWS)
        worker = picture.watch(**_settings(picture), otlp_endpoint=receiver.endpoint)
        _complain_late()
        _write_by_hand(picture)
        yield worker


def _settings(picture: Picture) -> dict[str, Any]:
    usual = {"provider": "openai", "base_url": picture.endpoint.base_url, "model": JUDGE_MODEL}
    return {
        "models": {
            "default": usual | {"price": {"input": 0.4, "output": 1.6}},
            "second": usual | {"model": "judge-2"},
            "plain": {"provider": "lexical"},
            "away": usual | {"base_url": f"http://127.0.0.1:{free_port()}/v1", "model": "judge-away"},
        },
        "rules": [
            _rule("all", "safety", "groundedness", "facts_grounding"),
            _rule("half", "faithfulness", rate=0.5),
            _rule("panel", "relevance_to_query", model=["default", "second"], combine="majority", rate=0.3),
            _rule("whole traces", "steps", model="plain", rate=0.3),
            _rule("given up", "correctness", model="away", rate=0.2),
            _rule("complaints", "safety", where={"service": _LATE}, rate=0, always=["negative_feedback"]),
        ],
        "judges": {"steps": {"instructions": "Did every step of {{ trace }} end well?"}},
        "give_up_after": "1s",
        "late_feedback_wait": 0.5,
    }


def _rule(name: str, *judges: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "where": {"service": SERVICE}, "judges": judges, **more}


def _complain_late() -> None:
    """Publish a trace that no rule chooses until its user is heard."""
    trace = call(0, _LATE, {})
    tracejudge.publish(trace)
    tracejudge.feedback(trace.trace_id, score=-1)


def _write_by_hand(picture: Picture) -> None:
    """Write what the SDK would not: no JSON, a field that nobody knows, and losses of another producer."""
    defaults = {"trace_id": "f" * 32, "service": SERVICE, "environment": ENVIRONMENT, "output": "By hand."}
    report = {
        "producer": "other",
        "seq": 1,
        "service": SERVICE,
        "published": 5,
        "accepted": 4,
        "dropped": {"too_large": 1},
    }
    picture.pipeline.add(v="1", t="no JSON")
    picture.pipeline.add(v="1", t=json.dumps(defaults | {"mood": "fine"}))
    picture.pipeline.add(v="1", r=json.dumps(report))
