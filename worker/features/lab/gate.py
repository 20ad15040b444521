"""The gate of a release: shares that must pass, and the same rows as they were judged before."""

import math
import os
import re
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, Final

import click

from judges.agreement import pass_share
from judges.agreement.intervals import Interval, Z
from judges.agreement.paired import Cells
from judges.agreement.shares import student
from judges.core.prompt import neutralise
from judges.core.verdict import Verdict
from worker.base.commands.options import amount, options
from worker.features.lab.resume import read_verdict
from worker.features.lab.summary import JudgeSum

_BOUND: Final = "Exit code 1 if surely fewer of the judge's rows pass, 3 if that is undecided; repeatable."
_BASELINE: Final = "Verdicts on the same rows before, by trace_id: exit code 1 if surely fewer pass now."
_OLD, _NEW = click.Path(exists=True, dir_okay=False), click.Path(dir_okay=False, writable=True, allow_dash=True)
_TITLE: Final = "## Judged answers"
_MAX_SHOWN: Final = 100  # Changed rows in a summary.
_CHANGES: Final = {True: "passes", False: "fails", None: "has no score"}
_CODES: Final = {"pass": 0, "fail": 1, None: 3}
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
        if options["undecided"] and not self._bounds:
            raise click.UsageError("--undecided needs --fail-under")
        self._before: dict[tuple[str, ...], bool | None] = {}
        # How often a row came, before and now: those of one trace_id are paired by their position.
        self._seen: tuple[Counter[tuple[str, ...]], ...] = Counter(), Counter()
        if path := options["baseline"]:
            with Path(path).open("rb") as file:
                read = (
                    read_verdict(line, Path(path), number, "give such a file") for number, line in enumerate(file, 1)
                )
                self._before = {self._key(verdict, 0): _passed(verdict) for verdict in read if verdict is not None}
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
            raise click.UsageError(f"{what}: delete it, or judge it anew (the former answers, as these)")

    def add(self, verdict: Verdict) -> None:
        """Count a verdict, and find the one before."""
        key = self._key(verdict, 1)
        before = (self._before.pop(key),) if key in self._before else ()
        if (rows := self._rows.get(key[:3])) is not None:
            rows.append((" ".join(filter(None, key[3:])), verdict.session_id, _passed(verdict), before))

    def _key(self, verdict: Verdict, side: int) -> tuple[str, ...]:
        """Name judge, version, model and row; a row that came before gets a number."""
        # A conversation that has grown has another last trace.
        session = verdict.session_id if "session" in verdict.details else None
        row = (verdict.trace_id, verdict.span_id or "") if session is None else (session,)
        key = (verdict.judge, verdict.judge_version, verdict.judge_model, *row)
        self._seen[side][key] += 1
        return key if (number := self._seen[side][key]) == 1 else (*key, f"({number})")

    def findings(self) -> list[dict[str, Any]]:
        """Decide about each judge and judge model; limits count rows without a score as fails and as passes."""
        findings = []
        for key, name in self._names.items():
            rows, bound = self._rows[key], self._bounds.get(key[0])
            passed = [now for _, _, now, _ in rows]
            share, without = pass_share(passed, session=[session for _, session, _, _ in rows]), passed.count(None)
            low, high = (0.0, 1.0) if share is None else (share.lowest, share.highest)
            counted = amount(len(rows) - without, "row") + (" with a score" if without else "")
            text = f"{name}: {'-' if share is None else f'{share.share:.1%}'} of {counted} passed, "
            text += f"{low:.1%} to {high:.1%} with 95 % confidence"
            text += f" ({without:,} more without a score may be either)" if without else ""
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
                    text += ", score the rows without a score" if without else ", no number of such rows would decide"
                if result == "undecided" and (chosen := self._options["undecided"]):
                    text += f", exit code {_CODES[chosen]} by --undecided {chosen}"
            pairs = Counter((now, *before) for _, _, now, before in rows if before and {now, *before} != {None})
            changed = {
                row: now for row, _, now, was in rows if {now, *was} == {True, False} or (now, *was) == (None, True)
            }
            cells, least, most = (_cells(pairs, kind) for kind in ((None, None), (False, True), (True, False)))
            difference = None
            if sum(cells):
                # A row that has a score on one side only may be either on the other.
                sides = [each.difference for each in (cells, least, most)]
                difference = Interval(sides[0].value, min(side.low for side in sides), max(side.high for side in sides))
                value, low_text, high_text = (f"{100 * value:+.1f}" for value in difference)
                text += f"; {value} points ({low_text} to {high_text}) against {sum(cells):,} judged before, of which "
                lost = list(changed.values()).count(None)
                text += f"{len(changed) - lost:,} changed" + (
                    f", and {lost:,} that passed lost their score" if lost else ""
                )
                text += ": surely fewer pass" if difference.high < 0 else ""
            elif self._options["baseline"]:
                text += "; none of them was judged before: both files need the same trace_id"
            again = [sum(times - 1 for row, times in seen.items() if row[:3] == key) for seen in self._seen]
            if self._options["baseline"] and any(again):
                text += (
                    f"; {amount(again[1], 'row')} here and {again[0]:,} before repeat a trace_id: paired by position"
                )
            figures = {"name": name, "rows": len(rows), "without_score": without, "share": share and share.share}
            decision = {"limits": (low, high), "fail_under": bound, "result": result, "more_rows": more_rows}
            change = {"rows_before": sum(cells), "difference": difference, "changed": changed}
            findings.append({**figures, **decision, **change, "text": text})
        return findings

    def finish(self, problems: Sequence[str], what: str) -> int:
        """Write the summary with the problems that make the exit code 1, and return the exit code."""
        findings = self.findings()
        results = {finding["result"] for finding in findings}
        fell = any(finding["difference"] and finding["difference"].high < 0 for finding in findings)
        undecided = _CODES[self._options["undecided"]] if "undecided" in results else 0
        code = 1 if fell or problems or "fail" in results else undecided
        if path := self._options["summary"]:
            is_gate = code or any(finding["result"] or finding["difference"] for finding in findings)
            lines = [_TITLE + (f": {({0: 'passed', 1: 'failed'}).get(code, 'undecided')}" if is_gate else ""), ""]
            lines += [f"- {_escaped(text)}" for text in (what, *problems)]
            for finding in findings:
                lines.append(f"- {_escaped(finding['text'])}")
                changed = list(finding["changed"].items())
                lines += [
                    f"  - {_escaped(name)} {_CHANGES[now]}, and {'failed' if now else 'passed'} before"
                    for name, now in changed[:_MAX_SHOWN]
                ]
                more = len(changed) - _MAX_SHOWN
                lines += [f"  - and {more:,} more"] if more > 0 else []
            text = "\n".join((*lines, ""))
            try:
                print(text, end="") if path == "-" else Path(path).write_text(text, encoding="utf-8")
            except OSError as error:
                raise click.ClickException(f"{path} cannot be written ({error.strerror})") from error
        return code


def check_files(file: str, output: str | None, options: Mapping[str, Any], *, as_json: bool, force: bool) -> None:
    """Refuse, before anything is opened, a file that is written and named twice, and a summary in place of others."""
    summary, named = options["summary"], dict[tuple[object, ...], str]()
    paths = {"FILE": file, "--baseline": options["baseline"], "--output": output, "--summary": summary}
    for option, path in paths.items():
        if path is None or (path == "-" and option != "FILE"):
            continue
        key: tuple[object, ...]
        try:
            found = os.fstat(0) if path == "-" else Path(path).stat()
            is_file, key = stat.S_ISREG(found.st_mode), (found.st_dev, found.st_ino)
        except OSError:
            is_file, key = True, (Path(path).resolve(),)
        if is_file and (other := named.setdefault(key, option)) != option:
            what = f"{path} is the input" if other == "FILE" else f"{path} is named by {other} too"
            raise click.UsageError(f"{what}; give {option} another name")
    if summary == "-" and (as_json or output == "-"):
        raise click.UsageError("--summary - and verdicts or --json both use standard output; give --summary a file")
    if summary in {None, "-"}:
        return
    if not os.access(Path(summary).parent, os.W_OK):
        raise click.UsageError(f"--summary: {summary} cannot be created: there is no such folder, or it is read-only")
    if not force and Path(summary).is_file():
        with Path(summary).open("rb") as older:
            if (head := older.read(len(_TITLE))) and head != _TITLE.encode():
                raise click.UsageError(f"--summary: {summary} is no older summary; give another name, or --force")


def deciding(options: Mapping[str, Any]) -> str | None:
    """Name the option that chooses the exit code, if there is one."""
    names = {"bounds": "--fail-under", "baseline": "--baseline"}
    return next((name for key, name in names.items() if options[key]), None)


def _bound(text: str) -> tuple[str, float]:
    name, _, share = text.rpartition("=")
    with suppress(ValueError):
        if name and 0 < float(share) < 1:
            return name, float(share)
    raise click.UsageError(f"--fail-under: {text}: write a judge and a share between 0 and 1, as groundedness=0.9")


def _cells(pairs: Mapping[tuple[bool | None, ...], int], missing: tuple[bool | None, bool | None]) -> Cells:
    """Count rows that passed both times, only now, only before, never, with this in place of missing scores."""
    counts = Counter[tuple[bool | None, ...]]()
    for (passes, passed), count in pairs.items():
        counts[missing[0] if passes is None else passes, missing[1] if passed is None else passed] += count
    return Cells(*(counts[kind] for kind in product((True, False), repeat=2)))


def _passed(verdict: Verdict) -> bool | None:
    """Return whether all metrics with a pass rule pass; None without such a score."""
    rated = [score.passed for score in verdict.scores if score.passed is not None]
    return all(rated) if rated else None


def _escaped(text: str) -> str:
    """Put foreign text on one line of Markdown, in which no name and no number becomes a link."""
    safe = re.sub(r"([\\`*_\[\]<>|~!&])", r"\\\1", neutralise(" ".join(text.split())))
    return re.sub(r"([@#]+)", r"`\1`", safe)
