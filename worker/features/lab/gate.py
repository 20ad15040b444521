"""The gate of a release: shares that must pass, and the same rows as they were judged before."""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

import click

from judges.agreement import pass_share
from judges.agreement.intervals import Interval, Z
from judges.agreement.paired import Cells
from judges.agreement.shares import ShareEstimate
from judges.core.prompt import neutralise
from judges.core.verdict import Verdict
from worker.base.commands.options import amount, chosen_metric, options
from worker.features.lab.resume import read_verdict
from worker.features.lab.summary import JudgeSum

Result = Literal["pass", "fail", "undecided"]
Passed = bool | None  # None for a row that was asked for and got no score.
_MOST_LISTED: Final = 100  # Changed rows in the summary; JSON has all.
_EXIT_CODES: Final[Mapping[str | None, int]] = {"pass": 0, "fail": 1, None: 3}
GATE: Final = options(
    click.option(
        "--fail-under",
        "bounds",
        multiple=True,
        metavar="JUDGE=SHARE",
        help="Exit code 1 if surely fewer rows pass, 3 if that is undecided; JUDGE.METRIC too; repeatable.",
    ),
    click.option(
        "--undecided", type=click.Choice(("pass", "fail")), help="Exit code 0 or 1 in place of 3 for --fail-under."
    ),
    click.option(
        "--baseline",
        type=click.Path(exists=True, dir_okay=False),
        metavar="OUT",
        help="Verdicts on these rows before, by trace_id: exit code 1 if surely fewer pass now.",
    ),
    click.option("--summary", metavar="FILE", help="Write the result as Markdown, for a pull request."),
)


@dataclass
class GateRow:
    """The rows of one judge and judge model, now and before."""

    name: str
    metric: str
    bound: float | None
    before: dict[tuple[str, str | None], Passed]
    passed: list[Passed] = field(default_factory=list)
    sessions: list[Hashable] = field(default_factory=list)
    pairs: Counter[tuple[Passed, Passed]] = field(default_factory=Counter)  # Now and before.
    changed: list[tuple[str, bool, bool]] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        """Count a verdict, and compare it with the one before."""
        passed, key = next((each.passed for each in verdict.scores if each.metric == self.metric), None), _key(verdict)
        self.passed.append(passed)
        self.sessions.append(verdict.session_id)
        if key in self.before:
            before = self.before.pop(key)
            self.pairs[passed, before] += 1
            if passed is not None and before is not None and passed is not before:
                self.changed.append((key[0], before, passed))

    @cached_property
    def share(self) -> ShareEstimate | None:
        """The share that passes; rows without a score count as fails for its lowest limit, as passes for its highest."""
        return pass_share(self.passed, session=self.sessions)

    @property
    def limits(self) -> tuple[float, float]:
        """The limits that decide."""
        return (0.0, 1.0) if self.share is None else (self.share.lowest, self.share.highest)

    @property
    def result(self) -> Result | None:
        """Whether surely enough rows pass; None without a bound."""
        if self.bound is None:
            return None
        low, high = self.limits
        return "fail" if high < self.bound else "pass" if low > self.bound else "undecided"

    @property
    def more_rows(self) -> int | None:
        """How many more rows like these would decide; None if no number would."""
        if self.bound is None or self.share is None:
            return None
        counts, total = Counter(self.passed), len(self.passed)
        low, high = counts[True] / total, 1 - counts[False] / total
        if low <= self.bound <= high:
            return None
        # Wilson's interval of n rows leaves the bound out from this n on.
        distance = low - self.bound if low > self.bound else self.bound - high
        needed = Z * Z * self.bound * (1 - self.bound) / distance**2 * self.share.design_effect
        return max(1, math.ceil(needed - total))

    @cached_property
    def difference(self) -> Interval | None:
        """The share that passes now, less that before, of the same rows; what has no score may be either."""
        if not self.pairs:
            return None
        known = sum(count for pair, count in self.pairs.items() if None not in pair)
        value = (self.pairs[True, False] - self.pairs[False, True]) / max(1, known)
        return Interval(value, self._cells(False, True).difference.low, self._cells(True, False).difference.high)

    def _cells(self, now: bool, before: bool) -> Cells:  # noqa: FBT001 - two values of the same kind
        """Return the pairs with these values in place of absent scores."""
        kinds: Counter[tuple[bool, bool]] = Counter()
        for (is_now, was), count in self.pairs.items():
            kinds[now if is_now is None else is_now, before if was is None else was] += count
        return Cells(kinds[True, True], kinds[True, False], kinds[False, True], kinds[False, False])

    @property
    def fell(self) -> bool:
        """Whether surely fewer of the same rows pass than before."""
        return self.difference is not None and self.difference.high < 0

    def sentences(self) -> Iterator[str]:
        """Say what is decided, and why."""
        low, high = self.limits
        if self.bound is not None:
            share = "no row" if self.share is None else f"{self.share.share:.1%} of {amount(len(self.passed), 'row')}"
            without = f"; {absent:,} without a score may be either" if (absent := self.passed.count(None)) else ""
            text = f"{self.name}: {share} passed, {low:.1%} to {high:.1%} with 95 % confidence{without}"
            yield f"{text}; --fail-under {self.bound:.1%}: {self.result}{self._advice()}"
        if self.difference is not None:
            value, low, high = (f"{100 * limit:+.1f}" for limit in self.difference)
            pairs = f"{amount(self.pairs.total(), 'row')} judged before"
            yield f"{self.name}: {value} points ({low} to {high}) on {pairs}, {len(self.changed):,} changed"
        elif self.before:
            yield f"{self.name}: no row was judged before; rows are joined by trace_id, so give both files the same ones"

    def _advice(self) -> str:
        if self.result != "undecided":
            return ""
        if (more := self.more_rows) is not None:
            return f"; about {amount(more, 'more row')} like these would decide"
        return "; no number of such rows would decide"

    def document(self) -> dict[str, object]:
        """Lay the row out for JSON."""
        return {
            "name": self.name,
            "fail_under": self.bound,
            "result": self.result,
            "rows": len(self.passed),
            "without_score": self.passed.count(None),
            "share": None if self.share is None else self.share.share,
            "limits": self.limits,
            "more_rows": self.more_rows,
            "rows_before": self.pairs.total(),
            "difference": self.difference,
            "fell": self.fell,
            "changed": [{"trace_id": name, "before": before, "now": now} for name, before, now in self.changed],
        }


class Gate:
    """What `--fail-under`, `--baseline` and `--summary` ask of an evaluation."""

    def __init__(
        self,
        sums: Sequence[JudgeSum],
        *,
        bounds: Sequence[str],
        undecided: str | None,
        baseline: str | None,
        summary: str | None,
    ) -> None:
        """Read the baseline.

        Raises:
            UsageError: A bound or a file cannot be used.
        """
        self._undecided, self._summary = undecided, summary
        asked = dict(map(_bound, bounds))
        before = _read_baseline(Path(baseline)) if baseline else {}
        self._rows: dict[tuple[str, str], list[GateRow]] = {}
        for row in sums if bounds or baseline or summary else ():
            judge, by = row.judge, row.judge_model
            former = before.get((judge.name, judge.version, by), {})
            if baseline and not former:
                what = f"--baseline: {baseline} has no verdict of {judge.name}, version {judge.version[:8]}, by {by}"
                raise click.UsageError(f"{what}; judge the former answers again as these")
            names = [name for name in asked if name.partition(".")[0] == judge.name]
            for name in names or [judge.name]:
                metric = chosen_metric(judge, name.partition(".")[2] or None)
                if metric.pass_rule is not None:
                    title = row.name if metric.name == judge.name else f"{row.name} {metric.name}"
                    scores = {key: scores.get(metric.name) for key, scores in former.items()}
                    made = GateRow(title, metric.name, asked.get(name), scores)
                    self._rows.setdefault((judge.name, by), []).append(made)
                elif names:
                    raise click.UsageError(f"--fail-under: {name}: {metric.name} has no pass rule; name another metric")
        if absent := [name for name in asked if name.partition(".")[0] not in {row.judge.name for row in sums}]:
            raise click.UsageError(f"--fail-under: {absent[0]} is not judged here; name it by --judge too")
        if summary is not None:
            _write(Path(summary), "")

    @property
    def rows(self) -> list[GateRow]:
        """All rows, in the order of the judges."""
        return [row for rows in self._rows.values() for row in rows]

    def add(self, verdict: Verdict) -> None:
        """Count a verdict."""
        for row in self._rows.get((verdict.judge, verdict.judge_model), ()):
            row.add(verdict)

    def finish(self) -> int:
        """Write the summary, and return the exit code."""
        results = {row.result for row in self.rows}
        failed = "fail" in results or any(row.fell for row in self.rows)
        code = 1 if failed else _EXIT_CODES[self._undecided] if "undecided" in results else 0
        if self._summary is not None:
            _write(Path(self._summary), "\n".join(self._markdown(code)) + "\n")
        return code

    def _markdown(self, code: int) -> Iterator[str]:
        yield f"## Quality of the answers: {({0: 'passed', 1: 'failed'}).get(code, 'undecided')}\n"
        yield "| judge | rows | passed | 95 % limits | at least | result | against before |\n|:--|--:|--:|--:|--:|:--|--:|"
        for row in self.rows:
            low, high = row.limits
            share = "-" if row.share is None else f"{row.share.share:.1%}"
            bound = "-" if row.bound is None else f"{row.bound:.1%}"
            change = "-" if (change := row.difference) is None else "{:+.1f} points ({:+.1f} to {:+.1f})".format(
                *(100 * value for value in change)
            )
            result = "fewer than before" if row.fell else row.result or "-"
            limits = f"{low:.1%} to {high:.1%}"
            cells = (_code(row.name), f"{len(row.passed):,}", share, limits, bound, result, change)
            yield f"| {' | '.join(cells)} |"
        for row in self.rows:
            if row.changed:
                yield f"\n### {_code(row.name)}: {amount(len(row.changed), 'row')} changed\n"
                for name, _, now in row.changed[:_MOST_LISTED]:
                    yield f"- {_code(name)} {'passes, and failed' if now else 'fails, and passed'} before"


def _bound(text: str) -> tuple[str, float]:
    name, _, share = text.rpartition("=")
    try:
        bound = float(share)
    except ValueError:
        bound = 0.0
    if not name or not 0 < bound < 1:
        raise click.UsageError(f"--fail-under: {text}: write a judge and a share between 0 and 1, as groundedness=0.9")
    return name, bound


def _read_baseline(path: Path) -> dict[tuple[str, str, str], dict[tuple[str, str | None], dict[str, Passed]]]:
    """Read whether each metric of each row passed, by judge, version and judge model."""
    before: dict[tuple[str, str, str], dict[tuple[str, str | None], dict[str, Passed]]] = defaultdict(dict)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            verdict = read_verdict(line, path, number, "give --baseline such a file")
            if verdict is not None:
                scores = {score.metric: score.passed for score in verdict.scores}
                before[verdict.judge, verdict.judge_version, verdict.judge_model][_key(verdict)] = scores
    return before


def _key(verdict: Verdict) -> tuple[str, str | None]:
    # A conversation is the same one when it has grown, or was answered otherwise.
    return (verdict.session_id or "", None) if "session" in verdict.details else (verdict.trace_id, verdict.span_id)


def _code(text: str) -> str:
    """Put foreign text into Markdown, where it is code and no more."""
    return f"`{neutralise(' '.join(text.split())).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--summary: {path}: {error.strerror}") from error
