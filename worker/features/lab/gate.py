"""The gate of a release: shares that must pass, and the same rows as they were judged before."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, Final

import click

from judges.agreement import pass_share
from judges.agreement.intervals import Z
from judges.agreement.paired import Cells
from judges.agreement.shares import student
from judges.core.prompt import neutralise
from judges.core.verdict import Verdict
from worker.base.commands.options import amount, options
from worker.features.lab.resume import read_verdict
from worker.features.lab.summary import JudgeSum

_BOUND: Final = "Exit code 1 if surely fewer of the judge's rows pass, 3 if that is undecided; repeatable."
_BASELINE: Final = "Verdicts on the same rows before, by trace_id: exit code 1 if surely fewer pass now."
_OLD, _NEW = click.Path(exists=True, dir_okay=False), click.File("w", encoding="utf-8", lazy=False)
GATE: Final = options(
    click.option("--fail-under", "bounds", multiple=True, metavar="JUDGE=SHARE", help=_BOUND),
    click.option("--undecided", type=click.Choice(("pass", "fail")), help="Exit code 0 or 1 in place of 3."),
    click.option("--baseline", type=_OLD, metavar="OUT", help=_BASELINE),
    click.option("--summary", type=_NEW, metavar="FILE", help="Write the result as Markdown, for a pull request."),
)


class Gate:
    """What `--fail-under`, `--baseline` and `--summary` ask of an evaluation."""

    def __init__(self, sums: Sequence[JudgeSum], options: Mapping[str, Any]) -> None:
        """Read the baseline of the options `GATE`, or raise ``UsageError`` if it or a bound is of something else."""
        self._options, self._bounds = options, dict(map(_bound, options["bounds"]))
        self._before: dict[tuple[str, ...], bool | None] = {}
        if path := options["baseline"]:
            with Path(path).open("rb") as file:
                read = (
                    read_verdict(line, Path(path), number, "give such a file") for number, line in enumerate(file, 1)
                )
                self._before = {_key(verdict): _passed(verdict) for verdict in read if verdict is not None}
        is_asked = bool(self._bounds or path or options["summary"])
        self._names = {
            (row.judge.name, row.judge.version, row.judge_model): row.name
            for row in sums
            if is_asked and any(metric.pass_rule for metric in row.judge.metrics)
        }
        # Of each row its name, session, and whether it passes now and before: None without a score, empty without one.
        self._rows: dict[tuple[str, ...], list[tuple[str, str | None, bool | None, tuple[bool | None, ...]]]]
        self._rows = {key: [] for key in self._names}
        absent = self._bounds.keys() - {judge for judge, _, _ in self._names}
        if absent or (is_asked and not self._names):
            raise click.UsageError(
                f"nothing to gate: {min(absent, default='it')} is no --judge that passes or fails rows"
            )
        for judge, version, by in self._names.keys() - {key[:3] for key in self._before} if path else ():
            what = f"--baseline has no verdict of {judge}, version {version[:8]}, by {by}"
            raise click.UsageError(f"{what}; judge the former answers again as these")

    def add(self, verdict: Verdict) -> None:
        """Count a verdict, and find the one before."""
        key = _key(verdict)
        before = (self._before.pop(key),) if key in self._before else ()
        if (rows := self._rows.get(key[:3])) is not None:
            rows.append((key[3], verdict.session_id, _passed(verdict), before))

    def findings(self) -> list[dict[str, Any]]:
        """Decide about each judge and judge model; limits count rows without a score as fails and as passes."""
        findings = []
        for key, name in self._names.items():
            rows, bound = self._rows[key], self._bounds.get(key[0])
            passed = [now for _, _, now, _ in rows]
            share, without = pass_share(passed, session=[session for _, session, _, _ in rows]), passed.count(None)
            low, high = (0.0, 1.0) if share is None else (share.lowest, share.highest)
            text = f"{name}: {'-' if share is None else f'{share.share:.1%}'} of {amount(len(rows), 'row')} passed, "
            text += f"{low:.1%} to {high:.1%} with 95 % confidence"
            text += f" ({without:,} without a score may be either)" if without else ""
            result = more_rows = None
            if bound is not None:
                result = "fail" if high < bound else "pass" if low > bound else "undecided"
                text += f"; --fail-under {bound:.1%}: {result}"
                # Rows by which the share is off the bound, whatever those without a score are. The interval of n rows
                # leaves the bound out from n = z² bound (1 - bound) / distance² on.
                off = max(passed.count(True) - bound * len(rows), passed.count(False) - (1 - bound) * len(rows))
                if result == "undecided" and share is not None and off > 0:
                    squared = bound * (1 - bound) * (len(rows) / off) ** 2 * share.design_effect
                    needed = squared * student(math.ceil(squared * Z * Z)) ** 2
                    more_rows = max(1, math.ceil(needed - len(rows)))
                    text += f", about {more_rows:,} more rows like these would decide"
                elif result == "undecided":
                    text += ", no number of such rows would decide"
            pairs = Counter((now, *before) for _, _, now, before in rows if before and None not in (now, *before))
            changed = {name: bool(now) for name, _, now, before in rows if {now, *before} == {True, False}}
            # Both passed, only now, only before, neither.
            cells = Cells(*(pairs[kind] for kind in product((True, False), repeat=2)))
            difference = cells.difference if pairs else None
            if difference is not None:
                value, least, most = (f"{100 * value:+.1f}" for value in difference)
                text += f"; {value} points ({least} to {most}) against {sum(cells):,} judged before, of which "
                text += f"{len(changed):,} changed" + (": surely fewer pass" if difference.high < 0 else "")
            elif self._before:
                text += "; none of them was judged before: both files need the same trace_id"
            figures = {"name": name, "rows": len(rows), "without_score": without, "share": share and share.share}
            decision = {"limits": (low, high), "fail_under": bound, "result": result, "more_rows": more_rows}
            change = {"rows_before": sum(cells), "difference": difference, "changed": changed}
            findings.append({**figures, **decision, **change, "text": text})
        return findings

    def finish(self) -> int:
        """Write the summary, and return the exit code."""
        findings = self.findings()
        results = {finding["result"] for finding in findings}
        fell = any(finding["difference"] and finding["difference"].high < 0 for finding in findings)
        undecided = {"pass": 0, "fail": 1}.get(self._options["undecided"], 3)
        code = 1 if fell or "fail" in results else undecided if "undecided" in results else 0
        if file := self._options["summary"]:
            print(f"## Judged answers: {({0: 'passed', 1: 'failed'}).get(code, 'undecided')}\n", file=file)
            for finding in findings:
                print(f"- {_escaped(finding['text'])}", file=file)
                for name, now in list(finding["changed"].items())[:100]:
                    change = "passes, and failed before" if now else "fails, and passed before"
                    print(f"  - {_escaped(name)} {change}", file=file)
        return code


def _bound(text: str) -> tuple[str, float]:
    name, _, share = text.rpartition("=")
    with suppress(ValueError):
        if name and 0 < float(share) < 1:
            return name, float(share)
    raise click.UsageError(f"--fail-under: {text}: write a judge and a share between 0 and 1, as groundedness=0.9")


def _key(verdict: Verdict) -> tuple[str, ...]:
    judge = verdict.judge, verdict.judge_version, verdict.judge_model
    # A conversation that has grown has another last trace.
    name = verdict.session_id if "session" in verdict.details else None
    return (*judge, verdict.trace_id, verdict.span_id or "") if name is None else (*judge, name)


def _passed(verdict: Verdict) -> bool | None:
    """Return whether all metrics with a pass rule pass; None without such a score."""
    rated = [score.passed for score in verdict.scores if score.passed is not None]
    return all(rated) if rated else None


def _escaped(text: str) -> str:
    """Put foreign text on one line of Markdown."""
    return re.sub(r"([\\`*_\[\]<>|~#!])", r"\\\1", neutralise(" ".join(text.split())))
