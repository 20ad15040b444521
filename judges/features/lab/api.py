"""The judges in Python: what ``from judges import groundedness, make_judge, evaluate`` imports.

    verdict = groundedness(inputs="Who?", outputs="Ada.", context=["Ada wrote it."], model="openai:/gpt-6-luna")
    tone = make_judge("tone", "Is {{ outputs }} polite?", "openai:/gpt-6-luna")
    table = evaluate_all(frame, [groundedness, tone], model="openai:/gpt-6-luna")

A verdict is the one that `tracejudge evaluate` would give: the same prompts, reading, limits, retries and cost. Nothing
is published or stored.

Calls work with and without a running event loop (``judges.features.lab.background``).
"""

import dataclasses
import re
from collections.abc import AsyncIterator, Awaitable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, Never, Protocol, TypeAlias, TypeVar, cast, get_args, get_origin, overload

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from judges.calling.runs import JudgeRunner, TimedAssessment, in_order
from judges.catalog import catalogue
from judges.core import sessions
from judges.core.judge import RESULT, Judge, has_text
from judges.core.model import CallTotals
from judges.core.verdict import NoTruth, Outcome, Reason, Score, seconds_of, with_message
from judges.custom import DefinitionError, define
from judges.custom.definition import Temperature, check_name, convert, nearest
from judges.custom.scales import passing_of
from judges.endpoints.client import LimitedModel
from judges.features.lab.background import Model, background, join, log, wait
from judges.parsing.rows import as_trace, decode_cells, encoded
from judges.registry import make_defined, read_judge
from tracejudge import Trace
from tracejudge.content.convert import Notes
from tracejudge.content.field_names import closest_field, field_of, meaning

__all__ = [
    "JudgeFunction",
    "JudgeVerdict",
    "evaluate",
    "evaluate_aio",
    "evaluate_all",
    "evaluate_all_aio",
    "load_judge",
    "make_judge",
]
# Arguments beside the fields of a trace, as MLflow names them.
_ARGUMENTS: Final = ("inputs", "outputs", "context", "expectations")
_EXPECTED: Final = ("expected_response", "expected_facts", "guidelines")
_SHOWN_AS: Final = {
    "input": "inputs",
    "output": "outputs",
    "expected_response": 'expectations["expected_response"]',
    "expected_facts": 'expectations["expected_facts"]',
}
_LOGGED: Final = set[str]()  # Of this process.
_RESULTS: Final = frozenset({bool, int, float, str, list, dict})  # Their names are words for a `result`.
# The key of a judge file for an argument of MLflow's `make_judge`, or of another name in Python.
_KEYS: Final[Mapping[str, str]] = {
    "feedback_value_type": "result", "description": "asks", "inference_params.temperature": "temperature",
    "pass_": "pass",
}  # fmt: skip
# A judge, its runner, and the numbers of the rows that it judges together.
_Unit: TypeAlias = tuple[Judge, JudgeRunner, Sequence[int]]

Row: TypeAlias = Mapping[str, object] | Trace
"""A row to judge: the arguments of a judge, or a row as `tracejudge evaluate` reads it from a file."""
Judges: TypeAlias = "JudgeFunction | Iterable[JudgeFunction]"


class Table(Protocol):
    """A DataFrame of pandas or polars."""

    @property
    def columns(self) -> Any:
        """The names of the columns."""
        ...


F = TypeVar("F", bound=Table)
V = TypeVar("V")


class VerdictList(NoTruth, list[V]):
    """Verdicts, or dicts of verdicts by judge, in the order of the rows. Slices, sums and copies are such lists too."""

    def __getitem__(self, index: Any) -> Any:
        items = super().__getitem__(index)
        return VerdictList(items) if isinstance(index, slice) else items

    def __add__(self, other: Any) -> "VerdictList[Any]":
        return VerdictList(super().__add__(other))

    def copy(self) -> "VerdictList[V]":
        """Return a shallow copy."""
        return VerdictList(self)


class VerdictDict(NoTruth, dict[str, "JudgeVerdict"]):
    """The verdicts of one row by the name of the judge."""

    def __or__(self, other: Any) -> Any:
        return VerdictDict(super().__or__(other))

    def copy(self) -> "VerdictDict":
        """Return a shallow copy."""
        return VerdictDict(self)


class JudgeVerdict(Struct, NoTruth, frozen=True, kw_only=True):
    """The verdict of a judge on one row. It has no truth value: use ``passed``.

    Attributes:
        judge: Name of the judge.
        outcome: `scored`, `abstained` or `unscored`.
        value: 0..1; 1 is good; None without a score and for a judge with several metrics.
        passed: Whether all metrics with a pass rule pass; None if none has one.
        result: The answer on the judge's own scale: a label, number, bool, text, list or object.
        rationale: The judge's reasons.
        reason: Why there is no score, as `missing_input` or `rate_limited`; only if unscored.
        note: The reason in one sentence.
        metrics: The score of each metric by name; empty without scores.
        details: Further findings: sentences, keys, excerpts, counts.
        judge_model: The model that judged.
        judge_version: Hash of prompt, answer form, scoring and settings.
        input_tokens: Sum over all requests.
        output_tokens: Sum over all requests.
        cost_usd: None if the model has no price, or its endpoint does not report tokens.
        attempts: Requests sent, including failed ones.
        duration_s: The time of its requests.
        waited_s: Waits for a place among other requests, and before retries.
    """

    judge: str
    outcome: Outcome
    value: float | None = None
    passed: bool | None = None
    result: Any = None
    rationale: str | None = None
    reason: Reason | None = None
    note: str | None = None
    metrics: Mapping[str, Score] = {}
    details: Mapping[str, Any] = {}
    judge_model: str
    judge_version: str
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    attempts: int = 0
    duration_s: float
    waited_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as a dict of plain values, for JSON."""
        return cast("dict[str, Any]", msgspec.to_builtins(self, str_keys=True))


class _Sampling(Struct):
    """The settings of every judge that asks a model."""

    temperature: Temperature | None = None


class JudgeFunction:
    """A judge that can be called, with an optional default model."""

    def __init__(self, definition: Judge, model: Model | None = None) -> None:
        self.definition = definition
        self.model = model
        self.__doc__ = _description(definition)

    @property
    def name(self) -> str:
        """The name of the judge."""
        return self.definition.name

    def __repr__(self) -> str:
        return f"<judge {self.name}: {self.definition.asks}>"

    def __call__(
        self,
        *positional: Never,
        inputs: object = None,
        outputs: object = None,
        context: object = None,
        expectations: Mapping[str, object] | None = None,
        model: Model | None = None,
        **fields: object,
    ) -> JudgeVerdict:
        """Judge one answer, and wait for the verdict.

        Args:
            inputs: The question: a text, or an object with a question or with messages.
            outputs: The answer: a text, or an object with one.
            context: The retrieved documents in rank order: texts, or objects with `text` or `page_content`.
            expectations: `expected_response` or `expected_facts`, and `guidelines`.
            model: The judge model; by default the judge's.
            fields: Further fields of a trace, as `messages`, `guidelines`, `tool_calls`, `spans` or `tags`.

        Raises:
            ValueError: The model or a field cannot be used. A failed request raises nothing: the verdict is `unscored`.
        """
        return wait(self._judge(self._row(positional, (inputs, outputs, context, expectations), fields), model))

    async def aio(
        self,
        *positional: Never,
        inputs: object = None,
        outputs: object = None,
        context: object = None,
        expectations: Mapping[str, object] | None = None,
        model: Model | None = None,
        **fields: object,
    ) -> JudgeVerdict:
        """Judge one answer without blocking the event loop; arguments and errors as in a call."""
        return await join(self._judge(self._row(positional, (inputs, outputs, context, expectations), fields), model))

    def configured(self, *, model: Model | None = None, **settings: object) -> "JudgeFunction":
        """Make the same judge with another default model, `temperature`, or settings of its `[judges.NAME]`.

        Raises:
            ValueError: A setting cannot be used.
        """
        definition = self.definition
        sampling = {"temperature": settings.pop("temperature", definition.temperature)}
        temperature = convert(sampling, _Sampling).temperature
        if temperature is not None and definition.run is not None:
            raise DefinitionError("temperature", f"{self.name} asks no model; remove it")
        if settings and definition.make is None:
            raise DefinitionError(next(iter(settings)), f"{self.name} has no settings; remove {', '.join(settings)}")
        if settings and definition.make is not None:
            values = {**msgspec.to_builtins(definition.settings), **settings}
            definition = definition.make(convert(values, type(definition.settings)))
        definition = dataclasses.replace(definition, temperature=temperature)
        return JudgeFunction(definition, self.model if model is None else model)

    def _row(self, positional: Sequence[object], values: Sequence[object], fields: Mapping[str, object]) -> Row:
        if positional:
            form = f"{self.name}(inputs=…, outputs=…, context=…, expectations=…, model=…)"
            raise TypeError(f"{self.name}() takes arguments by name only; write {form}")
        arguments = (*_ARGUMENTS, *Trace.__struct_fields__)
        for name in fields:
            if name not in arguments:
                raise TypeError(f"{self.name}() has no argument {name!r}{nearest(name, arguments)}")
        named = dict(zip(_ARGUMENTS, values, strict=True))
        # In the rows of a table they may hold labels too.
        if isinstance(expectations := named["expectations"], Mapping):
            for name in expectations:
                if name not in Trace.__struct_fields__:
                    raise TypeError(f"expectations has no key {name!r}{nearest(str(name), _EXPECTED)}")
        return {**named, **fields}

    async def _judge(self, row: Row, model: Model | None) -> JudgeVerdict:
        (verdicts,) = await _evaluate([row], [self], model)
        return verdicts[self.name]


def make_judge(
    name: str, instructions: str, model: Model | None = None, *, result: object = None, **keys: object
) -> JudgeFunction:
    """Make a judge from criteria in words. The arguments of MLflow's ``make_judge`` are understood too.

    Args:
        name: Its name: at most 64 small letters, digits and `_`, a letter first.
        instructions: The criteria, with variables as `{{ inputs }}`, `{{ outputs }}`, `{{ context }}`.
        model: The default model of the judge.
        result: What the model answers, as in a judge file: `"yes/no"` (the default), `"text"`,
            `{"integer": [1, 5], "pass_at": 4}`, `{"labels": ["formal", "casual"], "pass": ["formal"]}` and others.
            `bool`, `str` and `Literal["yes", "no"]` work too; other labels in a `Literal` have no value and no pass.
        keys: Other keys of such a file, as `temperature` or `examples`. `feedback_value_type` is given in place of
            `result` and may be any number too, `description` is `asks`, `inference_params` may hold a `temperature`.

    Raises:
        ValueError: The definition cannot be used; the message names the key and how to fix it.
    """
    if name in catalogue():
        raise DefinitionError("name", f"{name} is the name of a built-in judge; choose another")
    check_name(name, "name")
    sampling = keys.pop("inference_params", None) or {}
    if not isinstance(sampling, Mapping) or not sampling.keys() <= {"temperature"}:
        raise DefinitionError("inference_params", "holds the temperature only; other options belong to the model")
    wrapped = {f"inference_params.{key}": value for key, value in sampling.items()}
    keywords = {"instructions": instructions, **({} if result is None else {"result": result}), **keys, **wrapped}
    for key, meant in _KEYS.items():
        if key in keywords and meant in keywords:
            raise DefinitionError(key, f"means the same as {meant}, which is given too; remove one of them")
    named = {_KEYS.get(key, key): key for key in keywords}
    table = {"result": "yes/no", **{_KEYS.get(key, key): value for key, value in keywords.items()}}
    table["result"] = _declared(table["result"])
    if "feedback_value_type" in keywords and table["result"] in ("integer", "int", "float"):
        table["result"] = "any number" if table["result"] == "float" else "any integer"
    try:
        definition = define(name, table)
    except DefinitionError as error:
        # The message shows the form of a judge file; here it is an argument.
        start, sign, form = error.fix.partition(" = {")
        argument = re.sub(r"(\w+) = ", r'"\1": ', form).replace("{ ", "{").replace(" }", "}")
        key, dot, path = error.key.partition(".")
        fix = f"{start}={{{argument.lstrip()}" if sign else error.fix
        if error.key == "result" and named.get(key) == "feedback_value_type" and fix.startswith("must be"):
            fix = f"must be {', '.join(sorted(kind.__name__ for kind in _RESULTS))} or a Literal of labels"
        raise DefinitionError(f"{named.get(key, key)}{dot}{path}", fix) from None
    return JudgeFunction(definition, model)


def _declared(result: object) -> object:
    """Return the declaration of a result that a Python type names; others as they are."""
    if get_origin(result) is not Literal:
        kind = get_origin(result) or result
        return kind.__name__ if isinstance(kind, type) and kind in _RESULTS else result
    values = get_args(result)
    if {*map(type, values)} == {bool}:
        return "bool"
    if {*map(type, values)} == {int} and sorted(values) == [*range(min(values), max(values) + 1)]:
        return {"integer": [min(values), max(values)]}
    labels = [*map(str, values)]
    return labels if passing_of(labels) else {"labels": labels, "rated": False}


def load_judge(path: str | PathLike[str], model: Model | None = None) -> JudgeFunction:
    """Load the judge that a file defines, as `judges.d/NAME.toml`: of any kind, also what `judges align` wrote.

    Args:
        path: The file; its name is the judge's, and files that it names are relative to it.
        model: The default model of the judge. A `model` in the file names a table of a configuration: it is not read.

    Raises:
        ValueError: The file cannot be read or used; the message names file and key.
    """
    return JudgeFunction(make_defined(read_judge(Path(path))), model)


@overload
def evaluate(data: Iterable[Row], judge: JudgeFunction, model: Model | None = None) -> list[JudgeVerdict]: ...
@overload
def evaluate(data: F, judge: JudgeFunction, model: Model | None = None) -> F: ...
def evaluate(data: Any, judge: JudgeFunction, model: Model | None = None) -> Any:
    """Judge rows with one judge, several at the same time within the limits of the model.

    Args:
        data: Rows, each with the arguments of the judge, or a DataFrame with such columns (pandas or polars).
        judge: A judge. One whose unit is a conversation judges the rows of a `session_id` together.
        model: The judge model; by default the judge's.

    Returns:
        A verdict for each row; for a DataFrame a copy with columns as `groundedness_value` and `groundedness_passed`.

    Raises:
        ValueError: The model or a row cannot be used; the message names the row. Failed requests raise nothing.
    """
    return wait(_one(data, judge, model))


@overload
async def evaluate_aio(data: Iterable[Row], judge: JudgeFunction, model: Model | None = None) -> list[JudgeVerdict]: ...
@overload
async def evaluate_aio(data: F, judge: JudgeFunction, model: Model | None = None) -> F: ...
async def evaluate_aio(data: Any, judge: JudgeFunction, model: Model | None = None) -> Any:
    """Judge rows with one judge without blocking the event loop, as ``evaluate`` does."""
    return await join(_one(data, judge, model))


@overload
def evaluate_all(data: Iterable[Row], judges: Judges, model: Model | None = None) -> list[dict[str, JudgeVerdict]]: ...
@overload
def evaluate_all(data: F, judges: Judges, model: Model | None = None) -> F: ...
def evaluate_all(data: Any, judges: Judges, model: Model | None = None) -> Any:
    """Judge rows with several judges, as ``evaluate`` does; the verdicts of a row are a dict by the judge's name.

    ``judges`` may be a single judge. One with a default model uses it unless ``model`` is given.
    """
    return wait(_several(data, judges, model))


@overload
async def evaluate_all_aio(
    data: Iterable[Row], judges: Judges, model: Model | None = None
) -> list[dict[str, JudgeVerdict]]: ...
@overload
async def evaluate_all_aio(data: F, judges: Judges, model: Model | None = None) -> F: ...
async def evaluate_all_aio(data: Any, judges: Judges, model: Model | None = None) -> Any:
    """Judge rows with several judges without blocking the event loop, as ``evaluate_all`` does."""
    return await join(_several(data, judges, model))


@cache
def built_in(name: str) -> JudgeFunction:
    """Return a built-in judge; each can be imported from ``judges`` by its name."""
    return JudgeFunction(catalogue()[name])


def _description(judge: Judge) -> str:
    """Describe fields, value range and settings, for ``help`` and editors."""
    needs = [" or ".join(_SHOWN_AS.get(name, name) for name in words.split(" or ")) for words in judge.needs_in_words]
    metrics = [f"    {metric.name}: {metric.scale}; passes: {metric.passes}" for metric in judge.metrics]
    settings = ", ".join(type(judge.settings).__struct_fields__) or "none"
    unit = ["", "Its unit is a conversation, given as `messages` or as rows of one `session_id`."]
    return "\n".join(
        (
            judge.asks,
            "",
            f"Needs: {', '.join(needs)}.",
            "Metrics, on the judge's own scale (`value` is 0..1, 1 is good):",
            *metrics,
            f"Settings (`configured`): {settings}.",
            *(unit if judge.unit == "session" else ()),
        )
    )


def _traces(rows: Sequence[Row]) -> list[Trace]:
    """Read rows as traces; names that mean no field are logged once."""
    unknown: set[str] = set()
    traces = [_trace(row, number if len(rows) > 1 else None, unknown) for number, row in enumerate(rows)]
    if fresh := sorted(unknown - _LOGGED)[:20]:
        _LOGGED.update(fresh)
        hints = [f"{name} (did you mean {close}?)" if (close := closest_field(name)) else name for name in fresh]
        log.warning("rows have names that mean no field and become tags: %s", ", ".join(hints))
    return traces


def _trace(row: Row, number: int | None, unknown: set[str]) -> Trace:
    """Read a row as a trace; a value that is missing in a DataFrame is absent."""
    if isinstance(row, Trace):
        return row
    where = "" if number is None else f"row {number}: "
    if not isinstance(row, Mapping):
        raise TypeError(f"{where}must be a dict with inputs, outputs and others, and is of type {type(row).__name__}")
    notes = Notes()
    fields = as_trace(row, notes)
    for note in notes.entries:
        if note.reason in ("unreadable", "no_text"):
            name = next((name for name in row if field_of(str(name)) == note.field), note.field)
            fix = "change the value, or rename a column that is no field of a trace"
            raise ValueError(f"{where}{name}: a value of type {note.kind} cannot be read; {fix}")
        if note.reason == "unknown_name":
            unknown.add(note.field)
    return msgspec.json.decode(encoded({"output": "", **fields}), type=Trace)


async def _evaluate(
    rows: Sequence[Row], judges: Sequence[JudgeFunction], model: Model | None
) -> VerdictList[VerdictDict]:
    """Judge each row with each judge; a conversation is judged once, and all its rows get its verdict."""
    traces = _traces(rows)
    models = [_model_of(judge, model) for judge in judges]
    # One runner a model: judges share its bound.
    runners = {chosen: JudgeRunner(chosen) for chosen in models}
    forms = [runners[chosen].form_of(judge.definition) for judge, chosen in zip(judges, models, strict=True)]
    by_row = [VerdictDict() for _ in rows]

    async def units() -> AsyncIterator[_Unit]:
        for judge, chosen in zip(forms, models, strict=True):
            for numbers in _units(judge, traces):
                yield judge, runners[chosen], numbers

    def ask(unit: _Unit) -> Awaitable[TimedAssessment]:
        judge, runner, numbers = unit
        trace = traces[numbers[0]]
        if len(numbers) > 1:
            together = sessions.in_order([sessions.part(traces[number]) for number in numbers])
            trace = replace(sessions.join(together), tags=traces[numbers[-1]].tags)
        return runner.ask(judge, trace)

    def keep(unit: _Unit, timed: TimedAssessment) -> None:
        judge, runner, numbers = unit
        verdict = _verdict(judge, timed, runner)
        for number in numbers:
            by_row[number][judge.name] = verdict

    await in_order(units(), ask, keep, window=max(1, len(rows) * len(judges)))
    # In the order of the judges, whichever verdict came first.
    return VerdictList(VerdictDict({judge.name: verdicts[judge.name] for judge in judges}) for verdicts in by_row)


def _model_of(judge: JudgeFunction, model: Model | None) -> LimitedModel | None:
    definition = judge.definition
    if definition.run is not None:
        if definition.close is not None:
            background().closers[judge.name] = definition.close
        return None
    model = judge.model if model is None else model
    if model is None:
        fix = 'give model="openai:/NAME", or "lexical" for the built-in heuristic without a model'
        raise ValueError(f"{judge.name} needs a judge model; {fix}")
    return background().model(model)


def _units(judge: Judge, traces: Sequence[Trace]) -> Iterable[list[int]]:
    """Group the rows of a conversation for a judge of conversations; a row without a session is a group."""
    units: dict[Hashable, list[int]] = {}
    for number, trace in enumerate(traces):
        is_part = judge.unit == "session" and has_text(trace.session_id)
        key: Hashable = (trace.service, trace.environment, trace.session_id) if is_part else number
        units.setdefault(key, []).append(number)
    return units.values()


def _verdict(judge: Judge, timed: TimedAssessment, runner: JudgeRunner) -> JudgeVerdict:
    assessment = timed.assessment
    spent = CallTotals().plus(assessment.calls, runner.price).reported
    passes = [score.passed for score in assessment.scores if score.passed is not None]
    only = assessment.scores[0] if len(assessment.scores) == len(judge.metrics) == 1 else None
    return JudgeVerdict(
        judge=judge.name,
        outcome=assessment.outcome,
        value=None if only is None else only.value,
        passed=all(passes) if passes else None,
        result=assessment.details.get(RESULT, None if only is None else _rating(judge, only)),
        rationale=assessment.rationale,
        reason=assessment.reason,
        note=with_message(assessment.note, assessment.message) if assessment.note else None,
        metrics={score.metric: score for score in assessment.scores},
        details=assessment.details,
        judge_model=runner.judge_model,
        judge_version=judge.version,
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        cost_usd=spent.cost_usd,
        attempts=spent.calls,
        duration_s=(seconds := seconds_of(assessment.calls, timed.duration_s)),
        waited_s=timed.duration_s - seconds,
    )


def _rating(judge: Judge, score: Score) -> bool | float | str | None:
    """Return the rating of a score, of the type that the model was asked for."""
    properties: Any = judge.schema.get("properties", {})
    types = [field.get("type") for field in properties.values()]
    if score.label is not None:
        return score.label == "true" if "boolean" in types and score.label in {"true", "false"} else score.label
    if "integer" in types and isinstance(score.raw, float) and score.raw.is_integer():
        return int(score.raw)
    return score.raw


async def _one(data: Any, judge: JudgeFunction, model: Model | None) -> Any:
    rows = await _several(data, [judge], model)
    return VerdictList(verdicts[judge.name] for verdicts in rows) if isinstance(rows, list) else rows


async def _several(data: Any, selected: JudgeFunction | Iterable[object], model: Model | None) -> Any:
    if isinstance(data, Mapping | Trace):
        raise TypeError("the data is a single row; give a list of rows, as [row]")
    if isinstance(data, str | bytes | PathLike):
        raise TypeError("the data is a text or a path; read the file first, and give a list of its rows")
    judges: list[JudgeFunction] = []
    for judge in [selected] if isinstance(selected, JudgeFunction) else selected:
        if not isinstance(judge, JudgeFunction):
            fix = "import one from judges, or use make_judge; evaluate takes one judge, evaluate_all several"
            raise TypeError(f"a {type(judge).__name__} is no judge; {fix}")
        judges.append(judge)
    names = [judge.name for judge in judges]
    if len(set(names)) < len(names):
        raise ValueError(f"two judges have the same name: {', '.join(sorted(names))}; rename or remove one")
    is_pandas, is_polars = hasattr(data, "assign"), hasattr(data, "with_columns")
    if not (is_pandas or is_polars):
        return await _evaluate(list(data), judges, model)
    rows = [decode_cells(row) for row in (data.to_dict("records") if is_pandas else data.to_dicts())]
    if rows and not any(meaning(str(name)) for name in rows[0]):
        # A judge of tags needs no other column.
        (first,) = _traces(rows[:1])
        if all(judge.definition.missing(first) is not None for judge in judges):
            there = ", ".join(map(repr, rows[0]))
            raise ValueError(f"no column is a field of a trace; rename some to inputs, outputs, context: {there}")
    rated = await _evaluate(rows, judges, model)
    columns: dict[str, list[object]] = {}
    for judge in judges:
        columns |= _columns(judge.definition, [verdicts[judge.name] for verdicts in rated])
    return data.assign(**columns) if is_pandas else data.with_columns(type(data)(columns).get_columns())


def _columns(judge: Judge, verdicts: Sequence[JudgeVerdict]) -> dict[str, list[object]]:
    """Make the columns of one judge: a value for each metric, then what all verdicts have."""
    columns: dict[str, list[object]] = {}
    for metric in judge.metric_names:
        name = f"{judge.name}_value" if len(judge.metrics) == 1 else f"{judge.name}_{metric}"
        columns[name] = [verdict.metrics[metric].value if metric in verdict.metrics else None for verdict in verdicts]
    for field in ("result", "passed", "rationale", "outcome", "reason", "note", "cost_usd"):
        columns[f"{judge.name}_{field}"] = [getattr(verdict, field) for verdict in verdicts]
    return columns
