"""The metrics of some workers as Prometheus scrapes them each minute, in the notation of promtool.

A world begins at minute 0 and is scraped once a minute. Segments say for how many minutes how much is added in each.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

SERVICE: Final = "support-bot"
ENVIRONMENT: Final = "prod"
VERSION: Final = "1a2b3c4d"
MODEL: Final = "gpt-6-luna"
OUTCOMES: Final = ("pass", "fail", "unrated", "abstained", "unscored")
JOB: Final = "tracejudge"
STARTED: Final = "process_start_time_seconds"
LONG_AGO: Final = -2000.0
"""A minute more than a day before the world: of a process that Prometheus found late."""
GONE: Final = float("nan")
"""A counter that is not there: the worker does not know it yet, or is not scraped."""


class Minutes(NamedTuple):
    """The increase of a counter in each of some minutes; `restart` begins the counter anew first."""

    minutes: int
    each: float = 0.0
    restart: bool = False
    first: float = 0.0
    """What a restarted or new counter begins with."""


class Mix(NamedTuple):
    """Verdicts in each of some minutes."""

    minutes: int
    passes: float = 0
    fails: float = 0


class World:
    """Series by their name and labels."""

    def __init__(self, *, workers: bool = True, began: float = LONG_AGO) -> None:
        """Create a world with one healthy, idle worker that began at a minute, or an empty world."""
        self.series: dict[str, str] = {}
        if workers:
            self.worker("a", began=began)
            self.gauge("up", "1x20000", job=JOB, instance="a")
            self.gauge("tracejudge_stream_oldest_seconds", "0x20000", instance="a")

    def worker(self, instance: str, *, began: float = LONG_AGO, found: int = 0) -> "World":
        """Add a healthy worker that began at a minute, maybe before the world, and is scraped from another one on."""
        absent = f"_x{found} " if found else ""
        for role in ("ingest", "judge", "export"):
            self.gauge("tracejudge_ready", f"{absent}1x20000", role=role, job=JOB, instance=instance)
        return self.gauge(STARTED, f"{absent}{began * 60:g}x20000", job=JOB, instance=instance)

    def gauge(self, name: str, values: str, **labels: str) -> "World":
        """Add a series in promtool's own notation, where `1x5` is 1 for five minutes."""
        self.series[_selector(name, labels)] = " ".join(_expanded(part) for part in values.split())
        return self

    def counter(self, name: str, *segments: Minutes, absent: int = 0, born: float = 0, **labels: str) -> "World":
        """Add a counter of a worker that is absent for some minutes, and then begins with what it was born with."""
        labels = {"instance": "a", "job": JOB, **labels}
        values = [f"_x{absent}"] if absent else []
        now = born
        values.append(f"{now:g}")
        for segment in segments:
            if segment.each != segment.each:
                values.append(f"stale _x{segment.minutes - 1}" if segment.minutes > 1 else "stale")
                continue
            if segment.restart:
                now = segment.first - segment.each
            values.append(f"{now + segment.each:g}+{segment.each:g}x{segment.minutes - 1}")
            now += segment.each * segment.minutes
        self.series[_selector(name, labels)] = " ".join(values)
        return self

    def judged(
        self,
        *mixes: Mix,
        judge: str = "groundedness",
        metric: str | None = None,
        weights: tuple[float, float] = (1.0, 1.0),
        born: tuple[float, float] = (0, 0),
        outcomes: Sequence[str] = ("pass", "fail"),
        absent: int = 0,
        **labels: str,
    ) -> "World":
        """Add the counters of one judge on one service.

        Args:
            weights: Of each pass and of each failure.
            born: With how many passes and failures the counters begin.
            outcomes: Which series there are; a worker has all, with zeros.
        """
        series = {
            "service": SERVICE,
            "environment": ENVIRONMENT,
            "judge": judge,
            "version": VERSION,
            "judge_model": MODEL,
            "metric": metric or judge,
            **labels,
        }
        for outcome in outcomes:
            weight = {"pass": weights[0], "fail": weights[1]}.get(outcome, 1.0)
            first = {"pass": born[0], "fail": born[1]}.get(outcome, 0)
            each = [(mix.minutes, {"pass": mix.passes, "fail": mix.fails}.get(outcome, 0)) for mix in mixes]
            for name, factor in (("verdicts", 1.0), ("verdict_weight", weight), ("verdict_weight_squared", weight**2)):
                segments = [Minutes(minutes, amount * factor) for minutes, amount in each]
                ended = {**series, "outcome": outcome}
                self.counter(f"tracejudge_{name}_total", *segments, absent=absent, born=first * factor, **ended)
        scored = [Minutes(mix.minutes, mix.passes * weights[0]) for mix in mixes]
        return self.counter("tracejudge_score_weighted_total", *scored, absent=absent, **series)

    def traces(
        self, *segments: Minutes, service: str = SERVICE, outcome: str = "sampled", absent: int = 0, born: float = 0
    ) -> "World":
        """Add traces that were read from the stream."""
        names = {"service": service, "outcome": outcome}
        return self.counter("tracejudge_traces_total", *segments, absent=absent, born=born, **names)

    def without(self, *names: str) -> "World":
        """Remove series whose name begins with one of these."""
        self.series = {key: values for key, values in self.series.items() if not key.startswith(names)}
        return self

    def input_series(self) -> list[dict[str, str]]:
        return [{"series": key, "values": values} for key, values in self.series.items()]


def _selector(name: str, labels: dict[str, str]) -> str:
    return f"{name}{{{_pairs(labels.items())}}}"


def _pairs(labels: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f'{name}="{value}"' for name, value in labels)


def _expanded(part: str) -> str:
    """Convert `1x5` to the notation of promtool, which requires a step: `1+0x4`."""
    value, times, count = part.partition("x")
    return f"{value}+0x{int(count) - 1}" if times and "+" not in part and value not in {"_", "stale"} else part
