"""The decorator by which authors mark a function of a trace as a judge.

    from judges.code import Score, judge
    from tracejudge import Trace


    @judge
    def has_link(trace: Trace) -> bool:
        '''Does the answer hold a link?'''
        return "https://" in trace.output


    @judge(needs=("output", "context"), pass_at=0.5)
    async def overlap(trace: Trace) -> Score:
        '''How much of the answer stands in the documents?'''
        share = await measure(trace)
        return Score(share, rationale=f"{share:.0%} of its words")


    @judge(labels={"formal": 1, "plain": 0.5, "casual": 0}, pass_at=0.5)
    def tone(trace: Trace) -> tuple[str, str]:
        '''Which tone does the answer take?'''
        return ("casual", "It says mate.") if "mate" in trace.output else ("plain", "")

The functions can still be called: a test calls ``has_link(trace)``.
"""

import hashlib
import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Generic, TypeAlias, TypeVar, get_args, overload

import msgspec
from msgspec import Struct

from judges.core import sessions
from judges.core.judge import RULE, AnyOf, Metric, Needs, PassingError, Unit, is_name
from tracejudge import Trace


class CodeError(ValueError):
    """No judge can be made of this code; the message says how to fix it."""


class ClosedError(PassingError):
    """The judge was closed during the evaluation."""


class NotStartedError(PassingError):
    """No process runs the judge: a disk is full, a mount is gone, or its code changed after the worker started."""


_MAX_TIME_S: Final = 3600  # As in a judge's table. Timers cannot be set without a limit.


def check_function(function: object) -> None:
    """Check that a function can be called with a trace and nothing else, or raise ``CodeError``."""
    if not callable(function) or isinstance(function, type):
        raise CodeError("@judge must decorate a function of a trace")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # a function of C without a signature
    try:
        signature.bind(None)
    except TypeError:
        name = getattr(function, "__name__", "the function")
        raise CodeError(f"{name}{signature} must take one argument, the trace; give the others defaults") from None


def check_needs(needs: object, unit: object) -> None:
    """Check that all are fields of a trace, or of a conversation, or raise ``CodeError``."""
    if unit not in get_args(Unit):
        raise CodeError('unit must be "trace" or "session"')
    if isinstance(needs, str):
        raise CodeError(f'needs must be a tuple, as ("{needs}",)')
    if not isinstance(needs, Sequence):
        raise CodeError('needs must be a tuple of fields of a trace, as ("output", "context")')
    for need in needs:
        for name in need if isinstance(need, tuple) else (need,):
            if name not in Trace.__struct_fields__:
                raise CodeError(f"needs: a trace has no field {name!r}; it has {', '.join(Trace.__struct_fields__)}")
    if unit == "session" and (name := sessions.lacking(needs)) is not None:
        raise CodeError(f"needs: a conversation has no {name}; it has messages, input, output and tags")


def check_metrics(metrics: object, pass_at: object) -> None:
    """Check that each has a unique name and a pass mark that can be reached, or raise ``CodeError``."""
    if not isinstance(metrics, Sequence) or not all(isinstance(metric, Metric) for metric in metrics):
        raise CodeError('metrics must be a tuple of Metric, as (Metric("polite", "0 or 1", "true"),)')
    if metrics and pass_at is not None:
        raise CodeError("pass_at is for the one metric of a judge that declares none; give each Metric its own")
    for metric in metrics:
        if not isinstance(metric.name, str) or not is_name(metric.name):
            raise CodeError(f"the metric {metric.name!r} has an invalid name; write {RULE}")
        if not isinstance(metric.scale, str) or not isinstance(metric.pass_rule, str | None):
            raise CodeError(
                f"the metric {metric.name}: scale and pass_rule are texts for people, as '0..1' and '>= 0.5'"
            )
        if metric.pass_at is not None and metric.pass_rule is None:
            raise CodeError(f"the metric {metric.name} has pass_at and no pass_rule; say in words when it passes")
        _check_mark(metric.pass_at)
    if len({metric.name for metric in metrics}) < len(metrics):
        raise CodeError("two metrics have the same name; give each its own")
    _check_mark(pass_at)


def check_labels(labels: object, metrics: Sequence[Metric]) -> None:
    """Check that each label has a value, 0..1, or raise ``CodeError``."""
    if not isinstance(labels, Mapping):
        raise CodeError('labels must be a table of values, as {"formal": 1, "casual": 0}')
    if labels and metrics:
        raise CodeError("labels are for the one metric of a judge that declares none; give Score a value instead")
    for label, value in labels.items():
        if not isinstance(label, str) or not label.strip():
            raise CodeError("labels: each is a text that is not blank")
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise CodeError(f"labels: {label!r} must have a value from 0 to 1")


def check_rest(version: object, asks: object, time_limit_s: object) -> None:
    """Check the types of the other arguments, or raise ``CodeError``."""
    if not isinstance(version, str | None):
        raise CodeError(f'version must be a text, as version="{version}"')
    if not isinstance(asks, str | None):
        raise CodeError("asks must be a text: one sentence for lists")
    if not isinstance(time_limit_s, int | float) or not 0 < time_limit_s <= _MAX_TIME_S:
        raise CodeError(f"time_limit_s must be above 0 and at most {_MAX_TIME_S}")


def _check_mark(pass_at: object) -> None:
    if pass_at is not None and not (isinstance(pass_at, int | float) and 0 < pass_at <= 1):
        raise CodeError("pass_at must be above 0 and at most 1; without it numbers neither pass nor fail")


def imported(path: Path) -> ModuleType | None:
    """Return the module of a file that was imported already."""
    return sys.modules.get(_name(path))


def module_of(path: Path, text: bytes) -> ModuleType:
    """Import a file from its text, under a name made from its absolute path. Errors of its code are raised."""
    # Not by a loader of files, whose cache on disk would confuse texts of one second and size.
    module = ModuleType(_name(path))
    module.__dict__.update(__file__=str(path), __judge_text__=text)
    sys.modules[module.__name__] = module  # before it runs: dataclasses and msgspec look their module up
    try:
        exec(compile(text, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the user's own judge
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _name(path: Path) -> str:
    return f"{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"


def text_of(module: ModuleType) -> bytes:
    """Return the text from which a module was made, or the current text of its file, or raise ``OSError``."""
    text: bytes | None = getattr(module, "__judge_text__", None)
    return Path(getattr(module, "__file__", None) or "").read_bytes() if text is None else text


_NEEDS: Final[Mapping[str, Needs]] = {"trace": ("output",), "session": (AnyOf(("messages", "input", "output")),)}
_SAYS_BOOL: Final = re.compile(r"\bbool\b")
_SAYS_TEXT: Final = re.compile(r"\bstr\b")
_SAYS_VALUE: Final = re.compile(r"\b(?:bool|int|float|Score)\b")


class Score(Struct, frozen=True):
    """One score.

    Attributes:
        value: 0..1; 1 is good; true is 1 and false is 0. With a label alone it is the label's value in `labels`;
            without `labels` the label is stored and shown, and has no value.
        metric: The name of the metric, if the judge has several.
        passed: Set if the judge itself decides; else ``pass_at`` decides, or a value that is true or false.
        raw: The rating on the judge's own scale; by default the value.
        label: The rating in a word.
        rationale: The reasons, which may quote the trace.
    """

    value: bool | float | None = None
    metric: str | None = None
    passed: bool | None = None
    raw: float | str | None = None
    label: str | None = None
    rationale: str | None = None


Result: TypeAlias = bool | float | str | tuple[bool | float | str, str] | Score | Sequence[Score] | None
"""The result of a judge: a value, a label, either of them with a text that gives the reasons, or scores.

None, or an empty list, means that it abstains.
"""
R = TypeVar("R", bound=Result | Awaitable[Result])


@dataclass(frozen=True)
class CodeJudge(Generic[R]):
    """A function of a trace with the declarations of its judge. It can be called as the function."""

    function: Callable[[Trace], R]
    needs: Needs
    metrics: tuple[Metric, ...]
    pass_at: float | None
    version: str | None
    asks: str
    time_limit_s: float
    labels: Mapping[str, float] = field(default_factory=dict)
    unit: Unit = "trace"

    def __call__(self, trace: Trace) -> R:
        """Call the function."""
        return self.function(trace)

    def metrics_of(self, name: str) -> tuple[Metric, ...]:
        """Return its metrics, by default one with the judge's name."""
        if self.metrics:
            return self.metrics
        if self.labels:
            best = sorted(self.labels, key=self.labels.__getitem__, reverse=True)
            passing = " or ".join(label for label in best if self.labels[label] >= (self.pass_at or 2))
            return (Metric(name, " | ".join(best), passing or None, pass_at=self.pass_at),)
        if self.pass_at is not None:
            return (Metric(name, "0..1", f">= {self.pass_at:g}", pass_at=self.pass_at),)
        # The return annotation decides whether true and false pass; a function without one may return them.
        returns = getattr(self.function, "__annotations__", {}).get("return", bool)
        text = returns if isinstance(returns, str) else inspect.formatannotation(returns)
        if _SAYS_TEXT.search(text) and not _SAYS_VALUE.search(text):
            return (Metric(name, "text", None, descriptive=True),)
        return (Metric(name, "0 or 1", "true") if _SAYS_BOOL.search(text) else Metric(name, "0..1", None),)

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that change with its declarations, and with its version or else its file."""
        version = self.version
        if not version:
            try:
                source = text_of(sys.modules[self.function.__module__])
            except (AttributeError, KeyError, OSError) as error:
                raise CodeError('has no file to tell versions by; write @judge(version="1")') from error
            version = hashlib.blake2b(source, digest_size=16).hexdigest()
        needs = [need if isinstance(need, str) else (type(need).__name__, *need) for need in self.needs]
        identity: tuple[object, ...] = (version, needs, self.metrics_of(""))
        identity += (dict(self.labels),) if self.labels else ()
        identity += (self.unit,) if self.unit != "trace" else ()
        return hashlib.blake2b(msgspec.json.encode(identity), digest_size=16).hexdigest()


@overload
def judge(function: Callable[[Trace], R], /) -> CodeJudge[R]: ...


@overload
def judge(
    *,
    needs: Needs | None = ...,
    metrics: Sequence[Metric] = ...,
    pass_at: float | None = ...,
    version: str | None = ...,
    asks: str | None = ...,
    time_limit_s: float = ...,
    labels: Mapping[str, float] = ...,
    unit: Unit = ...,
) -> Callable[[Callable[[Trace], R]], CodeJudge[R]]: ...


def judge(
    function: Callable[[Trace], Any] | None = None,
    /,
    *,
    needs: Needs | None = None,
    metrics: Sequence[Metric] = (),
    pass_at: float | None = None,
    version: str | None = None,
    asks: str | None = None,
    time_limit_s: float = 10.0,
    labels: Mapping[str, float] = {},
    unit: Unit = "trace",
) -> Any:
    """Make a judge of a function, which may be asynchronous and returns a ``Result``.

    Args:
        function: The function, if the decorator has no arguments: `@judge`.
        needs: Fields of the trace without which it is not called; a tuple means exactly one of them. By default
            `output`; for a conversation a message, a query or an answer.
        metrics: Its metrics; by default one with the judge's name.
        pass_at: The least value of that one, above 0, that passes. Without it numbers neither pass nor fail; true and
            false do, if the annotation of the function says that it returns them.
        version: Distinguishes versions: a new one begins new series. By default the content of the function's file.
        asks: One sentence for lists; by default the first line of the function's docstring.
        time_limit_s: How long one trace may take before its process is killed; the configuration may override it.
        labels: The labels that it may return, each with its value, 0..1; from ``pass_at`` on a label passes.
        unit: What is judged: a `trace`, or a `session`. Then it gets the last trace of the conversation, with all
            earlier messages, queries and answers as its messages; `turns` lists them with the last ones.

    Raises:
        CodeError: An argument is invalid.
    """

    def make(function: Callable[[Trace], R]) -> CodeJudge[R]:
        check_function(function)
        text = asks or (inspect.getdoc(function) or "A judge in Python.").partition("\n")[0]
        return CodeJudge(function, fields, tuple(metrics), pass_at, version, text, time_limit_s, dict(labels), unit)

    fields = _NEEDS.get(unit, ()) if needs is None else needs
    check_needs(fields, unit)
    check_metrics(metrics, pass_at)
    check_labels(labels, metrics)
    check_rest(version, asks, time_limit_s)
    return make if function is None else make(function)
