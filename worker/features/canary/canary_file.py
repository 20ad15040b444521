"""The canary: labelled traces that the active monitor has judged again and again, to see whether a judge changes.

Twenty traces come with this module in canary.jsonl; the setting ``canary_file`` names others. Each line is a trace with
``labels``, the verdicts that a judge in words or in Python is expected to give.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from judges.core.faults import Fault, Faults, catch_fault, fault_of, first_raised, with_place
from judges.core.judge import Judge
from judges.core.verdict import Verdict
from judges.custom.definition import nearest, read_text
from judges.registry import load_judges
from tracejudge import Trace
from worker.base.monitor.feature import MONITOR
from worker.core.config.loading import judge_names
from worker.core.config.reading import ConfigSources
from worker.core.config.settings import Settings, SettingsError
from worker.features.canary.feature import CANARY_FILE

CANARY_SERVICE: Final = "tracejudge-canary"  # The service of a canary trace that names none.
MAX_CANARY_TRACES: Final = 200
_FIELDS: Final = frozenset((*Trace.__struct_fields__, "labels"))
_PASSES: Final = {"pass": True, "fail": False}
_ADVICE: Final = "name a file of traces with labels, or take canary_file out for the built-in traces"
# Reasons that say nothing of the judge: the trace or the budget is the cause.
_NOT_OF_THE_JUDGE: Final = frozenset({"missing_input", "input_too_long", "over_budget", "bad_request"})


class CanaryTrace(Struct, frozen=True):
    """One trace with its labels and line number; its id is made of both, so that a changed trace has no history."""

    trace: Trace
    labels: Mapping[str, bool]
    line: int

    @property
    def title(self) -> str:
        """The name of the trace, or its line, for logs."""
        return self.trace.name or f"line-{self.line}"


class Canary:
    """The traces of the canary by trace id, and the verdicts that they expect of the configured judges."""

    def __init__(self, traces: Sequence[CanaryTrace], judges: Mapping[str, Judge]) -> None:
        self.traces = {labelled.trace.trace_id: labelled for labelled in traces}
        self.judges = judges

    @classmethod
    def from_settings(cls, settings: Settings) -> "Canary":
        """Read the canary of a configuration, or the built-in one.

        Raises:
            SettingsError: The file cannot be read, or a line is not a labelled trace.
        """
        return first_raised(read_canary(settings))

    @cached_property
    def ids_by_judge(self) -> Mapping[str, frozenset[str]]:
        """The ids of the traces that are labelled for each judge; judges without any are left out."""
        by_judge = {
            name: frozenset(
                trace_id for trace_id, labelled in self.traces.items() if expected(judge, labelled.labels, self.judges)
            )
            for name, judge in self.judges.items()
        }
        return {name: trace_ids for name, trace_ids in by_judge.items() if trace_ids}

    def agrees(self, verdict: Verdict) -> bool | None:
        """Return whether a verdict is as the labels expect, None if it says nothing of the judge."""
        # All labelled metrics must be as expected. A judge that abstains or gives no usable answer does not agree.
        labelled, judge = self.traces.get(verdict.trace_id), self.judges.get(verdict.judge)
        if labelled is None or judge is None or verdict.reason in _NOT_OF_THE_JUDGE:
            return None
        expectation = expected(judge, labelled.labels, self.judges)
        passed = {score.metric: score.passed for score in verdict.scores}
        return all(passed.get(metric) is passes for metric, passes in expectation.items()) if expectation else None


def with_canary(settings: Settings, sources: ConfigSources, names: frozenset[str]) -> Faults[Settings]:
    """Find and check the canary's file beside the configuration; labels may name any of the ``names`` of judges."""
    path, file = sources.path, CANARY_FILE.read(settings)
    if file is None:
        return settings
    if path and sources.origin["canary_file"] == path:
        settings = CANARY_FILE.with_value(settings, str(Path(path).parent / file))
    if names == judge_names(settings):
        yield from read_canary(settings)
    return settings


def read_canary(settings: Settings) -> Faults[Canary]:
    """Read the canary of a configuration, or the built-in one."""
    judges = load_judges(settings.judges)
    file = CANARY_FILE.read(settings)
    if file is None:
        text = files("worker.features.canary").joinpath("canary.jsonl").read_text(encoding="utf-8")
        return Canary((yield from with_place("canary.jsonl", _read(text, judges))), judges)
    path = Path(file)
    content = yield from catch_fault(partial(read_text, path, _ADVICE, "canary_file"))
    return Canary([] if content is None else (yield from with_place(f"{path}", _read(content, judges))), judges)


def find_unlabelled(settings: Settings) -> Iterator[Fault]:
    """Find judges of the rules for which no trace of the canary is labelled."""
    if (
        CANARY_FILE.read(settings) is not None
        and MONITOR.read(settings).enabled
        and MONITOR.read(settings).canary_every_s
    ):
        canary, judges = Canary.from_settings(settings), load_judges(settings.judges)
        named = dict.fromkeys(judge for rule in settings.rules for judge in rule.judges)
        absent = [judge for judge in named if judges[judge].unit == "trace" and judge not in canary.ids_by_judge]
        if absent:
            fix = f"add labels for these judges to {CANARY_FILE.read(settings)}"
            yield Fault("canary_file", f"no trace is labelled for {', '.join(absent)}", fix, "canary-without-labels")


def expected(judge: Judge, labels: Mapping[str, bool], judges: Iterable[str]) -> dict[str, bool]:
    """Return the expected verdicts of a judge by metric; a judge of conversations has none."""
    # A label with the judge's name concerns its first metric with a pass rule. A label with the name of a metric
    # concerns that metric, unless another judge has the same name.
    rated = _rated(judge)
    passes = {name: labels[name] for name in rated if name in labels and (name == judge.name or name not in judges)}
    if judge.name in labels and rated and judge.name not in rated:
        passes.setdefault(rated[0], labels[judge.name])
    return passes


def _read(text: str, judges: Mapping[str, Judge]) -> Faults[list[CanaryTrace]]:
    traces: dict[str, CanaryTrace] = {}
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    for number, line in lines:
        trace = yield from catch_fault(partial(_trace_of, line, number, f"line {number}", judges))
        if trace is not None and (same := traces.setdefault(trace.trace.trace_id, trace)) is not trace:
            yield Fault("", f"line {number}: is the same as line {same.line}", "take one of them out")
    if not lines:
        yield fault_of("", f"holds no trace; {_ADVICE}")
    if len(traces) > MAX_CANARY_TRACES:
        fix = f"keep the {MAX_CANARY_TRACES} that differ most"
        yield Fault("", f"holds {len(traces)} traces, more than {MAX_CANARY_TRACES}", fix)
    return list(traces.values())


def _trace_of(line: str, number: int, place: str, judges: Mapping[str, Judge]) -> CanaryTrace:
    try:
        row: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise SettingsError(f"{place}: is not a JSON object; write one trace a line") from error
    for name in row:
        if name not in _FIELDS:
            raise SettingsError(f"{place}: {name}: no trace has this field{nearest(name, _FIELDS)}")
    labels = _labels(row.pop("labels", None), f"{place}: labels", judges)
    digest = hashlib.blake2b(msgspec.json.encode([row, labels], order="deterministic"), digest_size=8)
    # The id of a published trace would join the canary's verdicts with the verdicts of that trace.
    row |= {"trace_id": f"canary-{digest.hexdigest()}"}
    for name in ("id", "span_id", "session_id", "user_id", "response_id", "started_at", "ended_at"):
        row.pop(name, None)
    try:
        trace = msgspec.convert({"service": CANARY_SERVICE, **row}, Trace)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{place}: {error}; see docs/publishing.md for the fields") from error
    labelled = CanaryTrace(trace, labels, number)
    for judge in judges.values():
        missing = judge.missing(judge.prepare(trace)) if expected(judge, labels, judges) else None
        if missing is not None:
            fix = "add that field, or take the label out"
            raise SettingsError(f"{place}: labels: the judge {judge.name} cannot judge this trace: {missing}; {fix}")
    return labelled


def _labels(labels: object, place: str, judges: Mapping[str, Judge]) -> dict[str, bool]:
    if not isinstance(labels, dict) or not labels:
        raise SettingsError(f'{place}: must name at least one judge or metric, as {{"groundedness": "pass"}}')
    rated = {name: metrics for name, judge in judges.items() if (metrics := _rated(judge))}
    names = {*rated, *(metric for metrics in rated.values() for metric in metrics)}
    for name, value in labels.items():
        if name not in names:
            what = "is no judge of single traces, or metric, that passes or fails"
            raise SettingsError(f"{place}: {name}: {what}{nearest(name, names)}")
        if not isinstance(value, str) or value not in _PASSES:
            raise SettingsError(f'{place}: {name}: must be "pass" or "fail"')
    return {name: _PASSES[value] for name, value in labels.items()}


def _rated(judge: Judge) -> list[str]:
    """Name the metrics of a judge of single traces that pass or fail."""
    return [metric.name for metric in judge.metrics if metric.pass_rule is not None and judge.unit == "trace"]
