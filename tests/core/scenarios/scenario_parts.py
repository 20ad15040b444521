"""Shared parts of the scenarios: their clock, a worker with judge models, and the final checks.

A scenario tells what goes wrong for "a minute"; `MINUTE_S` says how long that is here. The product's own times (a
lease, a probe, the pause before it) are what they are, so who waits for them waits real seconds.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from http import HTTPStatus
from typing import Any, Final

import pytest
from support.endpoint import ChatEndpoint
from support.pipeline import SETTLING_S, Pipeline, Worker, model_at
from support.processes import PATIENCE_S, wait_until
from support.replies import Behaviour, slow, yes_no

from judges.core.verdict import Verdict
from judges.models.request_options import MAX_EXTRA
from worker.base.accounting import Account

__all__ = ["MINUTE_S", "SCALE", "Scenario", "answers", "patient"]

SCALE: Final = float(Fraction(os.environ.get("TRACEJUDGE_SCENARIO_SCALE", "1/20")))
MINUTE_S: Final = 60 * SCALE
RECOVERY_S: Final = PATIENCE_S
"""Time after an endpoint's return within which its work continues, on a busy machine. Not scaled. Half of it is
guaranteed, and tested in `tests/core/test_judging_parking.py` independently of the machine."""
JUDGES: Final = ("groundedness", "relevance_to_query")
CALLED: Final = "tracejudge_judge_request_duration_seconds_count"


def patient(minutes: float = 0.0) -> pytest.MarkDecorator:
    """Set the timeout of a test: this many minutes of its clock, and a margin for a busy machine."""
    return pytest.mark.timeout(900 + 2 * minutes * MINUTE_S)


def answers(seconds: float) -> Behaviour:
    """Answer every call after a delay."""
    return slow(seconds, yes_no())


class Scenario:
    """A pipeline with test endpoints as judge models: each judges all traces with a judge of its own."""

    def __init__(self, pipeline: Pipeline, endpoints: Mapping[str, ChatEndpoint]) -> None:
        self.pipeline, self.endpoints = pipeline, endpoints
        self._settings: dict[str, Any] = {}
        self.judges = dict(zip(endpoints, JUDGES, strict=False))

    def worker(self, *, model: Mapping[str, Any] | None = None, **settings: Any) -> Worker:
        """Start a worker; `model` has settings of all models, the other arguments are the worker's settings."""
        models = {
            name: model_at(endpoint.base_url, model=name, max_in_flight=48) | dict(model or {})
            for name, endpoint in self.endpoints.items()
        }
        rules = [{"name": name, "judges": [judge], "model": name} for name, judge in self.judges.items()]
        self._settings = {"models": models, "rules": rules, "log_level": "warning", **settings}
        return self.pipeline.worker(**self._settings)

    def replay(self, judge: str) -> dict[str, Any]:
        """Run `tracejudge replay` over the last hour, and return its output."""
        document: dict[str, Any] = self.pipeline.command("replay", "--since", "1h", "--judge", judge, **self._settings)
        return document

    def circuit_opens(self, worker: Worker, name: str) -> dict[str, Any]:
        """Wait until log and gauge show the circuit of this judge model, and no other, open; return the log line."""
        event = wait_until(lambda: _logged(worker, "circuit opened", name), what=f"the circuit of {name} to open")
        is_open = {other: float(other == name) for other in self.endpoints}
        wait_until(lambda: self._circuits(worker) == is_open, what=f"the gauges to be {is_open}")
        return event[-1]

    def _circuits(self, worker: Worker) -> dict[str, float]:
        samples = worker.scrape().samples("tracejudge_judge_circuit_open")
        return {sample.labels["judge_model"]: sample.value for sample in samples}

    @property
    def scored(self) -> int:
        return self.pipeline.counter("scored")

    def wait_scored(self, amount: int, timeout_s: float = SETTLING_S) -> None:
        wait_until(lambda: self.scored >= amount, timeout_s, f"{amount} evaluations to be scored")

    def judged(self, worker: Worker, name: str) -> float:
        """Return the verdicts of one judge model on the metrics page of the only worker."""
        return worker.scrape().total("tracejudge_verdicts_total", judge=self.judges[name])

    def wait_resumed(self, worker: Worker, name: str = "judge", *, failing_from: int | None = None) -> None:
        """Wait until a judge model that is back answers and none of its work is parked.

        Without load there may be no more calls when we come to look: then say from which one on none was answered.
        """
        endpoint, back = self.endpoints[name], time.monotonic()
        before = len(endpoint.calls) if failing_from is None else failing_from

        def answered() -> bool:
            return any(call.status == HTTPStatus.OK for call in endpoint.calls[before:])

        wait_until(answered, RECOVERY_S, f"{name} to be asked again")
        left_s = max(10.0, back + RECOVERY_S - time.monotonic())
        wait_until(lambda: worker.scrape().value("tracejudge_batches_parked") == 0, left_s, "no batch to be parked")

    def verdicts(self) -> list[Verdict]:
        return [entry.verdict for entry in self.pipeline.outbox()]

    def settle(self, traces: int, timeout_s: float = SETTLING_S) -> Account:
        """Wait until all work is done, and check that every evaluation was scored exactly once."""
        evaluations = traces * len(self.endpoints)
        wait_until(lambda: self.scored >= evaluations, timeout_s, f"{evaluations} evaluations to be scored")
        account = self.pipeline.settled(traces)
        ends = (account.published, account.chosen, account.scored, account.dead, account.unscored, account.lost)
        assert ends == (traces, evaluations, evaluations, 0, 0, 0), f"{traces} traces ended as {account}"
        once = Counter(verdict.evaluation_id for verdict in self.verdicts())
        assert (len(once), set(once.values())) == (evaluations, {1})
        assert self.pipeline.ledger_size() == evaluations
        return account

    def check_calls(self, worker: Worker, *, most: float = 1.1, seen: bool = True) -> None:
        """Check that there were hardly more calls than evaluations, and that the verdicts list every call.

        Args:
            worker: The only one.
            most: Calls for one evaluation, at most.
            seen: Whether the endpoints saw all calls, being there all the time.
        """
        verdicts = self.verdicts()
        attempts = sum(verdict.attempts for verdict in verdicts)
        counted = worker.scrape().total(CALLED)
        assert attempts == counted, f"verdicts tell of {attempts} calls, the worker of {counted:g}"
        assert attempts <= most * len(verdicts), f"{attempts} calls for {len(verdicts)} evaluations"
        if seen:
            calls = sum(len(endpoint.calls) for endpoint in self.endpoints.values())
            # A call whose options may be what was refused is sent again within the same attempt.
            further = MAX_EXTRA * len(self.endpoints)
            assert attempts <= calls <= attempts + further, f"verdicts tell of {attempts} calls, endpoints of {calls}"


def _logged(worker: Worker, event: str, judge_model: str) -> list[dict[str, Any]]:
    whole = [line for line in worker.program.stderr.splitlines(keepends=True) if line.startswith("{") and "\n" in line]
    lines = [json.loads(line) for line in whole if event in line]
    return [line for line in lines if (line["event"], line.get("judge_model")) == (event, judge_model)]
