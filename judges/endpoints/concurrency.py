"""The adaptive bound on calls in flight at one endpoint, found from latencies, failures and refusals alone.

Calls are numbered by their start. They are measured in rounds: a round counts only calls that began after it did, so
that the effects of an earlier limit are left out. With N calls in flight and a mean latency W, Little's law gives the
throughput as N / W. A larger limit is kept when a good part of the growth becomes throughput, a smaller one when hardly
any throughput is lost.
"""

import math
from collections import OrderedDict
from typing import Final, Literal, NamedTuple

Phase = Literal["ramp", "double", "settle", "steady"]
_START: Final = 64
_QUIET_S: Final = 0.2
_MIN_ENDS: Final = 10
_MIN_ENDS_STEADY: Final = 40  # Trials of a few calls would measure chance rather than the endpoint.
# Each step that helps makes the next one longer: after an error of measurement there may be far to go.
_STEPS: Final = (1.25, 1.5, 2.0)
_STEP_DOWN: Final = 0.8
_SETTLE: Final = 0.7
_WORTH: Final = 0.4
_LOST: Final = 0.05
_LOST_SETTLING: Final = 0.04
_SLOW: Final = 2.0
_SHRINK: Final = 0.75
_MIN_SHARE: Final = 0.1
_HELPED: Final = 0.75  # An overloaded endpoint answers about as many requests with half of the calls.
_MIN_LATENCY_S: Final = 1e-6
_FIRST_REST: Final = 5  # Rounds before the next trial; each unsuccessful trial doubles them.
_MAX_REST: Final = 80
_REST_LOWERED: Final = 3
_OVERTAKEN: Final = 3.0  # A call hangs when calls that began so many usual latencies after it are answered.


class InFlight:
    """The calls in flight, and those that hang: calls that began much later are answered, unlike in overload. Pure."""

    def __init__(self) -> None:
        self.running: OrderedDict[int, float] = OrderedDict()
        self.hanging = set[int]()
        self.silence_s = math.inf  # For how long no answer is unusual; infinite before the first one.
        self._usual_s = math.inf
        # When the calls that are answered now began: a mean, because one early answer proves nothing.
        self._began = 0.0

    def hangs(self, began: float) -> bool:
        """Return whether a call that began then is overtaken by far."""
        return began < self._began - _OVERTAKEN * self._usual_s

    def end(self, number: int) -> None:
        """Remove a call."""
        if self.running.pop(number, None) is None:
            self.hanging.discard(number)

    def record_answer(self, began: float, now: float) -> None:
        """Record an answer to a call that began then, and find the calls that it overtakes."""
        if self._usual_s == math.inf:
            self._usual_s, self._began = now - began, began
        self._usual_s += 0.1 * (now - began - self._usual_s)
        self._began += 0.3 * (began - self._began)
        self.silence_s = max(1.0, _OVERTAKEN * self._usual_s)
        while self.running and self.hangs(next(iter(self.running.values()))):
            self.give_up_oldest()

    def give_up_oldest(self) -> None:
        """Count the oldest call as one that hangs."""
        if self.running:
            self.hanging.add(self.running.popitem(last=False)[0])


class Trial(NamedTuple):
    """The state before a limit that is being tried, in calls and in calls per second."""

    limit: int
    throughput: float


class Round:
    """Outcomes of the calls from number ``first`` on."""

    __slots__ = ("calls", "contended", "ended", "failed", "first", "latency_s", "size", "succeeded")

    def __init__(self, first: int, size: int) -> None:
        self.first = first
        self.size = size
        self.calls = self.ended = self.failed = self.succeeded = self.contended = 0
        self.latency_s = 0.0

    @property
    def is_full(self) -> bool:
        """Whether a caller waited for a slot most of the time."""
        return 2 * self.contended > self.ended

    def throughput(self, limit: int) -> float:
        """Estimate the answers per second with ``limit`` calls in flight; 0 without any answer."""
        if not self.succeeded:
            return 0.0
        return limit / max(_MIN_LATENCY_S, self.latency_s / self.succeeded) * (1 - self.share_failed)

    @property
    def share_failed(self) -> float:
        """Share of failures among calls that ended, older ones included, since the limit was last lowered."""
        return self.failed / self.calls if self.calls else 0.0


class Latency:
    """Mean latencies of rounds in seconds: under the current limit, and a slow baseline."""

    def __init__(self) -> None:
        self.current_s: float | None = None  # Mean under the current limit; None until a round has ended.
        self._baseline_s: float | None = None

    def is_slow(self, latency_s: float) -> bool:
        """Return whether a round took more than twice the baseline."""
        return self._baseline_s is not None and latency_s > _SLOW * self._baseline_s

    def record(self, latency_s: float) -> None:
        """Add the mean latency of a round."""
        self.current_s = latency_s if self.current_s is None else self.current_s + 0.3 * (latency_s - self.current_s)
        if self._baseline_s is None:
            self._baseline_s = latency_s
        # Falls fast and rises slowly: overload comes on slowly too, but a lasting change must become the baseline.
        share = 0.5 if latency_s < self._baseline_s else 0.2
        self._baseline_s += share * (latency_s - self._baseline_s)


class AdaptiveLimit:
    """The bound on calls in flight at one endpoint. Pure: times and call numbers are passed in.

    Phases: ``double`` searches for the range, ``settle`` goes down again if doubling was quicker than its proof,
    ``steady`` tries a step up or down now and then, ``ramp`` climbs after an outage to a bound that was good before.
    """

    def __init__(self, most: int) -> None:
        """Start at 64, or at ``most`` if that is less."""
        self._most = most
        self.limit = min(_START, most)
        self._threshold = self.limit
        self._phase: Phase = "double" if self.limit < most else "steady"
        self._is_proved = False
        self._trial: Trial | None = None
        self._settled_down = False
        self._reference = 0.0
        self._goes_down = False
        self._helped = 0
        self._rest = _FIRST_REST
        self._resting = 2 * _FIRST_REST if self._phase == "steady" else 0
        self._latency = Latency()
        self._usual_share = 0.0
        self._quiet_since: float | None = None
        self._lowered_at = 0
        # The state before failures lowered the limit, until it is known whether that helped.
        self._lowered: Trial | None = None
        self._was_refused = False
        self._round = Round(0, self._round_size())

    @property
    def next_tick_at(self) -> float | None:
        """When ``tick`` should be called next if a caller still waits then."""
        if self._quiet_since is None or self._phase not in {"ramp", "double"}:
            return None
        return self._quiet_since + _QUIET_S

    def record_demand(self, now: float) -> None:
        """Record that a caller waits for a slot."""
        if self._quiet_since is None:
            self._quiet_since = now

    def tick(self, next_number: int, now: float) -> None:
        """Double if the endpoint has been silent: a limiter refuses at once, so the calls were let in."""
        tick_at = self.next_tick_at
        # A timer may fire slightly early, by the resolution of its clock.
        if tick_at is None or now < tick_at - 0.001:
            return
        self._quiet_since = now
        bound = self._threshold if self._phase == "ramp" else self._most
        if self.limit < bound:
            self._trial = None
            self._is_proved = False
            limit = min(bound, 2 * self.limit)
            # The calls that fill the new slots meet a short queue, and show nothing about a full one.
            self._move(limit, next_number + limit - self.limit)
        if self._phase == "ramp" and self.limit >= self._threshold:
            self._phase = "steady"

    def record_answer(self, number: int, next_number: int, latency_s: float, now: float, *, contended: bool) -> None:
        """Record an answer; ``contended`` says whether a caller waits for the slot."""
        self._quiet_since = now if contended else None
        if self._phase == "ramp" and contended:
            if self.limit < self._threshold:
                self.limit += 1
            if self.limit >= self._threshold:
                self._phase = "steady"
                self._move(self.limit, next_number)
        measured = self._round
        measured.calls += number >= self._lowered_at
        if number >= measured.first:
            measured.succeeded += 1
            measured.latency_s += latency_s
            self._count(measured, next_number, contended=contended)

    def record_failure(self, number: int, next_number: int, now: float, *, contended: bool) -> None:
        """Record a timeout or a failure of the endpoint: overload, if the share of them grows."""
        self._quiet_since = now if contended else None
        measured = self._round
        if number >= self._lowered_at:
            measured.calls += 1
            measured.failed += 1
            # Not at the end of the round: with timeouts of a minute that would be long after. Older calls in flight
            # may still be answered: failures are often quicker than answers.
            older = max(0, self.limit - (next_number - number))
            share = measured.failed / (measured.calls + older)
            # Calls that fail at any limit are no sign of overload.
            if measured.failed >= _MIN_ENDS and share > _MIN_SHARE + 2 * self._usual_share:
                # Lowered again before the first time was judged: both are judged together.
                before = self._lowered
                if before is None and measured.succeeded:
                    before = Trial(self.limit, measured.throughput(self.limit))
                self._back_off(next_number)
                self._lowered = before
                return
        if number >= measured.first:
            self._count(measured, next_number, contended=contended)

    def record_refusal(self, number: int, next_number: int) -> None:
        """Halve, because the endpoint asks for less. Of many calls refused together only one counts."""
        self._quiet_since = None
        if number >= self._lowered_at:
            self._back_off(next_number)

    def restart(self, next_number: int) -> None:
        """Start again at one call, and climb quickly to half of the former limit."""
        if self._phase != "ramp":
            self._threshold = self.limit if self._was_refused else max(1, self.limit // 2)
        self._phase = "ramp"
        self._trial = None
        self._is_proved = False
        self._quiet_since = None
        self._resting = 0
        self._move(1, next_number)

    def _count(self, measured: Round, next_number: int, *, contended: bool) -> None:
        """Count the end of a call; the last one of a round chooses the next limit."""
        measured.ended += 1
        measured.contended += contended
        if measured.ended < measured.size or self._phase == "ramp":
            return
        self._was_refused = False
        if not measured.is_full:
            # A limit that is not used cannot be measured.
            self._move(self.limit if self._trial is None else self._trial.limit, next_number)
            self._trial = None
            return
        lowered, self._lowered = self._lowered, None
        if lowered is not None and measured.throughput(self.limit) < _HELPED * lowered.throughput:
            # As many fail with fewer calls, and fewer are answered: the endpoint always fails so, it is no overload.
            self._usual_share = max(self._usual_share, measured.share_failed)
            self._move(lowered.limit, next_number)
            return
        self._usual_share += 0.2 * (measured.share_failed - self._usual_share)
        if 2 * measured.succeeded < measured.ended:
            self._move(self.limit, next_number)
            return
        latency_s = max(_MIN_LATENCY_S, measured.latency_s / measured.succeeded)
        if self._trial is not None:
            self._end_trial(self._trial, latency_s, next_number)
            return
        is_slow = self._latency.is_slow(latency_s)
        self._latency.record(latency_s)
        if is_slow:
            self._is_proved = False
            self._phase = "steady"
            self._move(max(1, int(self.limit * _SHRINK)), next_number)
        else:
            self._try_next(self._latency.current_s or latency_s, next_number)

    def _try_next(self, latency_s: float, next_number: int) -> None:
        limit = self._next_limit()
        if limit != self.limit:
            throughput = self.limit / latency_s
            # A long way down is made of small losses: they are compared with where it began.
            self._reference = max(self._reference, throughput) if self._phase == "settle" else throughput
            self._trial = Trial(self.limit, throughput)
        self._move(limit, next_number)

    def _next_limit(self) -> int:
        if self._phase == "double" and not self._is_proved and self.limit > _START:
            self._settle(is_down=False)
        if self._phase == "settle" and self.limit > 1:
            return int(self.limit * _SETTLE)
        if self._phase == "double":
            return min(self._most, 2 * self.limit)
        self._resting -= 1
        if self._resting > 0 or (self.limit == self._most and self._is_proved):
            return self.limit
        if (self._goes_down or self.limit == self._most) and self.limit > 1:
            return int(self.limit * _STEP_DOWN)
        return min(self._most, max(self.limit + 1, int(self.limit * _STEPS[self._helped])))

    def _end_trial(self, before: Trial, latency_s: float, next_number: int) -> None:
        self._trial = None
        throughput = self.limit / latency_s
        if self.limit > before.limit:
            is_worth = is_kept = throughput >= before.throughput * (1 + _WORTH * (self.limit / before.limit - 1))
        else:
            lost = _LOST_SETTLING if self._phase == "settle" else _LOST
            is_kept = throughput >= (1 - lost) * self._reference
            is_worth = not is_kept
        if is_kept:
            self._latency.current_s = None
            self._latency.record(latency_s)
        self._is_proved = is_worth
        self._next_phase(is_kept=is_kept, is_worth=is_worth)
        if is_kept:
            self._try_next(latency_s, next_number)
        else:
            self._move(before.limit, next_number)

    def _next_phase(self, *, is_kept: bool, is_worth: bool) -> None:
        if self._phase == "settle":
            self._settled_down |= is_kept
            if is_worth:
                self._phase = "steady" if self._settled_down else "double"
                self._pause()
        elif self._phase == "double":
            if not is_kept:
                self._settle(is_down=True)
        elif is_kept:
            self._resting, self._rest = 0, _FIRST_REST
            self._helped = min(self._helped + 1, len(_STEPS) - 1) if is_worth else 0
        else:
            self._helped = 0
            self._goes_down = not self._goes_down
            self._pause()

    def _settle(self, *, is_down: bool) -> None:
        self._phase, self._settled_down, self._reference = "settle", is_down, 0.0

    def _pause(self) -> None:
        self._resting = self._rest
        self._rest = min(_MAX_REST, 2 * self._rest)

    def _back_off(self, next_number: int) -> None:
        """Halve the limit; a trial under way is undone with it."""
        if self._phase == "ramp":
            self._threshold = max(1, self.limit // 2)
        self._phase = "steady"
        reached = self.limit if self._trial is None else min(self.limit, self._trial.limit)
        self._usual_share += 0.2 * (self._round.share_failed - self._usual_share)
        self._trial = None
        self._is_proved = False
        self._goes_down = False
        self._helped = 0
        self._resting, self._rest = _REST_LOWERED, _FIRST_REST
        self._lowered_at = next_number
        self._lowered = None
        self._was_refused = True
        self._move(max(1, reached // 2), next_number)

    def _move(self, limit: int, next_number: int) -> None:
        if limit != self.limit:
            self._latency.current_s = None
        self.limit = limit
        self._round = Round(next_number, self._round_size())

    def _round_size(self) -> int:
        fewest = _MIN_ENDS if self._phase in {"double", "ramp"} else min(_MIN_ENDS_STEADY, 4 * self.limit)
        return max(self.limit, fewest, _MIN_ENDS)
