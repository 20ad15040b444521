"""Archives of verdicts, and sums of verdicts that are read one by one.

An archive is a file of JSON lines, each a verdict as in the outbox (docs/reference/verdicts.md), plain or compressed by
gzip. `tracejudge tail --json` prints such lines.
"""

import gzip
import hashlib
import zlib
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import IO, Annotated, Final, Literal, NamedTuple, cast

import msgspec
from msgspec import Meta, Struct, structs

from judges.agreement.shares import Sums, Unjudged, merge_sums, sum_unjudged
from judges.core.verdict import Verdict, joined_parts
from worker.base.monitor.series import CLUSTER_PERIOD_S, VERSION_DIGITS, Bucket, is_unknown, segment_value
from worker.features.report.figures import Cost, Labels, Part, Scope

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
MAX_GROUPS: Final = 5_000
MAX_SESSIONS: Final = 200_000
MAX_IDS: Final = 1_000_000
_GZIP: Final = b"\x1f\x8b"

Seconds = Annotated[float, Meta(ge=0, le=10**11)]  # Up to the year 5138: later times have no date.


class ArchiveError(Exception):
    """An archive cannot be read; the text names file and line."""


class AbsentArchiveError(ArchiveError):
    """An archive cannot be opened."""


class VerdictLine(Verdict, frozen=True, kw_only=True):
    """A verdict as a line of an archive."""

    started_at: Seconds
    duration_s: Seconds
    dead: bool = False  # Set by `tracejudge tail --json` for an evaluation that was given up.


_decoder: Final = msgspec.json.Decoder(VerdictLine)
GUIDELINE: Final = "guideline"  # The key of rows by the number of a rule of `guidelines`.


class _RuleDetails(Struct, frozen=True):
    """The details of a verdict of `guidelines`."""

    rules: Annotated[int, Meta(ge=1, le=1000)]
    broken_rules: tuple[int, ...]


def _guidelines(verdict: Verdict) -> dict[str, bool]:
    """Return whether each rule is obeyed, by its number; `unknown` is broken if a failing verdict names none."""
    try:
        details = msgspec.convert(verdict.details, _RuleDetails)
    except msgspec.ValidationError:
        return {}
    obeyed = {str(number): number not in details.broken_rules for number in range(1, details.rules + 1)}
    is_unknown = all(obeyed.values()) and any(score.passed is False for score in verdict.scores)
    return {"unknown": False} if is_unknown else obeyed


def read_archive(path: str | Path) -> Iterator[VerdictLine]:
    """Yield the verdicts of an archive; empty lines are skipped.

    One line is in memory at a time.

    Raises:
        ArchiveError: The file cannot be read, or a line is no verdict; strict, since a share of the readable part of a
            damaged file would look like one of the whole.
    """
    number = 0
    try:
        with Path(path).open("rb") as raw:
            # By its content: rotated files have all kinds of names.
            is_compressed = raw.read(len(_GZIP)) == _GZIP
            raw.seek(0)
            file = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if is_compressed else raw
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                # A file of another kind may be one line of gigabytes.
                if len(line) > MAX_LINE_BYTES:
                    raise ArchiveError(f"{path}:{number}: is longer than {MAX_LINE_BYTES >> 20} MiB")
                if line.strip():
                    yield _decoder.decode(line)
    except msgspec.ValidationError as error:
        raise ArchiveError(f"{path}:{number}: is not a verdict: {error}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ArchiveError(f"{path}:{number}: is not JSON; each line is one verdict") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ArchiveError(f"{path}:{number + 1}: the compressed file is damaged or not complete") from error
    except OSError as error:
        kind = ArchiveError if number else AbsentArchiveError
        raise kind(f"{path}: {error.strerror or error}") from error


class Skipped(Struct):
    """Verdicts that a tally could not count, or counted with less."""

    repeated: int = 0  # Of an evaluation that was counted before.
    groups: int = 0  # Of labels beyond `MAX_GROUPS`.
    sessions: int = 0  # Whose session was forgotten, so that they count as independent.


class _Group(NamedTuple):
    labels: Labels
    version: str
    judge_model: str


class _Counts(Struct):
    """The sums of one bucket."""

    sums: Sums = msgspec.field(default_factory=Sums)
    abstained: Unjudged = Unjudged()
    inapplicable: Unjudged = Unjudged()


class Tally:
    """Sums of verdicts of one scope, in the same buckets and clusters as the monitor's. Memory is bounded."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._groups: dict[_Group, dict[float, _Counts]] = {}
        self._sessions: dict[int, dict[bytes, tuple[float, float]]] = defaultdict(dict)
        self._session_count = 0
        self._forgotten_until = 0
        self._ids: dict[int, None] = {}
        self.costs: dict[Labels, Cost] = defaultdict(Cost)
        self.skipped = Skipped()

    def add(self, verdict: Verdict, at: float, *, only: Literal["all", "cost"] = "all", dead: bool = False) -> None:
        """Count a verdict of live traffic; others do not describe it, and one whose evaluation was counted is skipped.

        ``at`` is when it was made, in seconds since the epoch; by ``only`` its cost alone counts. ``dead`` is one that
        was given up: unknown, also if a later retry is answered, as the monitor counts it.
        """
        scope = self._scope
        is_live = verdict.origin == "live" and verdict.weight > 0
        if not is_live or not scope.wants(verdict.service, verdict.judge):
            return
        if not scope.history <= at < scope.period.until:
            return
        # Whoever writes archives may deliver a verdict twice, and rotated files may be given twice.
        if self._is_repeated(f"dead:{verdict.evaluation_id}" if dead else verdict.evaluation_id):
            self.skipped.repeated += 1
            return
        passed = {score.metric: score.passed for score in verdict.scores}
        segments = {key: segment_value(verdict, verdict.tags, key) for key in scope.segments if key != GUIDELINE}
        guidelines = _guidelines(verdict) if GUIDELINE in scope.segments else {}
        for metric, guideline in product(verdict.metrics, guidelines or ("",)):
            passed[metric] = guidelines.get(guideline, passed.get(metric))
            segments[GUIDELINE] = guideline
            values = {"metric": metric, "version": verdict.judge_version[:VERSION_DIGITS]} | segments
            labels = tuple((key, values.get(key) or getattr(verdict, key, None) or "") for key in scope.keys)
            if not dead and at in scope.period and (labels in self.costs or len(self.costs) < MAX_GROUPS):
                cost, usd = self.costs[labels], verdict.cost_usd
                # An unknown cost is not zero: it stays out of the mean.
                cost.unpriced += usd is None
                cost.evaluations += usd is not None
                cost.usd += usd or 0.0
                cost.without_images += bool(verdict.without_images)
            if only == "all" and (verdict.outcome != "scored" or passed.get(metric) is not None):
                self._add_judgement(labels, verdict, at, passed.get(metric))

    @property
    def parts(self) -> list[Part]:
        """All sums so far."""
        return [
            Part(
                *group,
                self._scope.condensed(Bucket(at, *structs.astuple(counts)) for at, counts in buckets.items()),
                merge_sums(counts.sums for at, counts in buckets.items() if at < self._scope.lag),
            )
            for group, buckets in self._groups.items()
        ]

    def _is_repeated(self, evaluation_id: str) -> bool:
        """Return whether an evaluation is among the last ones that were counted."""
        digest = hashlib.blake2b(evaluation_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        # A number takes half the memory of the id, and two of a million are equal in 1 of 10^7 reports.
        number = int.from_bytes(digest)
        if number in self._ids:
            return True
        self._ids[number] = None
        if len(self._ids) > MAX_IDS:
            del self._ids[next(iter(self._ids))]
        return False

    def _add_judgement(self, labels: Labels, verdict: Verdict, at: float, passed: bool | None) -> None:  # noqa: FBT001
        group = _Group(labels, verdict.judge_version[:VERSION_DIGITS], verdict.judge_model)
        buckets = self._groups.get(group)
        if buckets is None:
            # Names and releases come from services, which may send a new one with each trace.
            if len(self._groups) >= MAX_GROUPS:
                self.skipped.groups += 1
                return
            buckets = self._groups[group] = {}
        counts = buckets.setdefault(at // self._scope.step * self._scope.step, _Counts())
        if verdict.outcome == "scored":
            before = self._grown(group, verdict, at, passed=bool(passed))
            counts.sums.count(verdict.weight, passed=bool(passed), before=before)
        elif is_unknown(verdict):
            counts.sums.count_unknown(verdict.weight)
        else:
            count = Unjudged(1, verdict.weight, verdict.weight**2)
            kind = "abstained" if verdict.outcome == "abstained" else "inapplicable"
            setattr(counts, kind, sum_unjudged((getattr(counts, kind), count)))

    def _grown(self, group: _Group, verdict: Verdict, at: float, *, passed: bool) -> tuple[float, float]:
        """Add a judgement to its session; return the session's sums before it, zeros if there are none."""
        period = int(at // CLUSTER_PERIOD_S)
        if verdict.session_id is None:
            return 0.0, 0.0
        if period < self._forgotten_until:
            self.skipped.sessions += 1
            return 0.0, 0.0
        # As in the monitor a session is one of each series, also where a row adds several of them up.
        name = joined_parts(
            verdict.service, verdict.environment or "", *(each for pair in group.labels for each in pair)
        )
        name += joined_parts(group.version, group.judge_model, verdict.session_id)
        session = hashlib.blake2b(name, digest_size=8).digest()
        of_period = self._sessions[period]
        before = of_period.get(session)
        if before is None:
            before = 0.0, 0.0
            self._session_count += 1
        of_period[session] = before[0] + verdict.weight, before[1] + verdict.weight * passed
        if self._session_count > MAX_SESSIONS:
            # Archives are in order of time, so the oldest period is the one that no more verdicts belong to.
            oldest = min(self._sessions)
            self._forgotten_until = max(self._forgotten_until, oldest + 1)
            self._session_count -= len(self._sessions.pop(oldest))
        return before
