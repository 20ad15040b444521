"""The run itself: publish, watch, show; at the end wait until everything is judged, and look into the books."""

import time
from typing import Final, NamedTuple

import tracejudge
from worker.books import Account, read_account
from worker.cli.demo.display import Display
from worker.cli.demo.scoreboard import Scoreboard
from worker.cli.demo.screen import View
from worker.cli.demo.session import Session
from worker.cli.demo.traffic import Traffic, load_samples, make_plan
from worker.cli.demo.watch import Lag, Rate, Watch

__all__ = ["Outcome", "play"]

_STEP_S: Final = 0.1
_SHOW_EVERY_S: Final = 0.25
_MEASURE_EVERY_S: Final = 1.0
_FLUSH_TIMEOUT_S: Final = 30.0
_SETTLE_TIMEOUT_S: Final = 30.0


class Outcome(NamedTuple):
    """What there is when the demo ends.

    Attributes:
        delivered: Redis confirmed every trace.
        view: The last one.
    """

    account: Account
    delivered: bool
    lag: Lag
    view: View

    @property
    def fault(self) -> str | None:
        """Say in a line what is wrong, None when nothing is."""
        account, seen = self.account, self.view.board.verdicts
        judged = account.scored + account.abstained + account.unscored + account.dead
        if not self.delivered:
            return f"Redis did not confirm every trace within {_FLUSH_TIMEOUT_S:g} s"
        if account.lost:
            return f"the books do not balance: {account.lost:,} lost (a negative figure counts what is there twice)"
        if not account.settled or self.lag.outbox:
            return (
                f"not settled within {_SETTLE_TIMEOUT_S:g} s: {account.unread:,} traces unread, "
                f"{account.waiting:,} evaluations waiting, {self.lag.outbox:,} verdicts not exported"
            )
        if seen != judged:
            return f"the outbox holds {seen:,} verdicts, the books {judged:,}"
        return None


def play(session: Session, seconds: float, display: Display) -> Outcome:
    """Run traffic for so many seconds, and wait until all of it is judged.

    Raises:
        DemoError: The worker died.
        StoreError: Redis did not answer.
    """
    return _Run(session, seconds, display).play()


class _Run:
    """One thread does it all, in steps of a tenth of a second: nothing is left to end when it is interrupted."""

    def __init__(self, session: Session, seconds: float, display: Display) -> None:
        plan = make_plan(load_samples(), seconds)
        self._session = session
        self._seconds = seconds
        self._display = display
        self._watch = Watch(session.store)
        self._lag = Lag()
        self._began_s = time.monotonic()
        began_at = time.time()
        self._traffic = Traffic(plan, began_at)
        self._board = Scoreboard(began_at, seconds)
        self._published, self._judged = Rate(), Rate()
        self._next_show_s, self._next_measure_s = 0.0, _MEASURE_EVERY_S

    def play(self) -> Outcome:
        """Publish, then wait for the rest."""
        while self._elapsed_s < self._seconds:
            self._traffic.publish_due(self._elapsed_s)
            self._step("publishing", self._traffic.pause_s(self._elapsed_s, _STEP_S))
        self._traffic.publish_due(self._seconds)  # whatever the last step overslept: the plan is published whole
        delivered = tracejudge.flush(_FLUSH_TIMEOUT_S)
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        while True:
            self._step("waiting for the last verdicts", _STEP_S)
            outcome = self._outcome(delivered=delivered)
            if outcome.fault is None or not delivered or time.monotonic() > deadline:
                return outcome

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _step(self, phase: str, pause_s: float) -> None:
        self._board.add(self._watch.read(pause_s))
        self._session.worker.check()
        if self._elapsed_s >= self._next_measure_s:
            self._next_measure_s = self._elapsed_s + _MEASURE_EVERY_S
            self._lag = self._watch.lag()
            self._published.update(self._traffic.published)
            self._judged.update(self._board.verdicts)
        if self._elapsed_s >= self._next_show_s:
            self._next_show_s = self._elapsed_s + _SHOW_EVERY_S
            self._display.show(self._view(phase))

    def _outcome(self, *, delivered: bool) -> Outcome:
        account = read_account(self._session.store)
        return Outcome(account, delivered, self._watch.lag(), self._view("ended"))

    def _view(self, phase: str) -> View:
        return View(
            elapsed_s=self._elapsed_s,
            seconds=self._seconds,
            phase=phase,
            board=self._board,
            lag=self._lag,
            published=self._traffic.published,
            published_per_s=self._published.per_s,
            judged_per_s=self._judged.per_s,
            redis_version=self._session.redis_version,
            metrics_url=self._session.worker.metrics_url,
        )
