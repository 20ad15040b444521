"""What the author of a judge in Python writes: a function of a trace, marked as a judge.

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

The functions stay what they are: a test calls ``has_link(trace)``.
"""

import hashlib
import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Generic, TypeAlias, TypeVar, overload

import msgspec
from msgspec import Struct

from judges.code.declared import check_function, check_metrics, check_needs, check_rest
from judges.code.errors import CodeError
from judges.code.source import text_of
from judges.judge import Metric, Needs
from tracejudge import Trace

__all__ = ["CodeJudge", "Result", "Score", "judge"]

_TIME_LIMIT_S: Final = 10.0
_SAYS_BOOL: Final = re.compile(r"\bbool\b")


class Score(Struct, frozen=True):
    """One score with what belongs to it.

    Attributes:
        value: 0..1, where 1 is good; true is 1 and false is 0.
        metric: Which one, where the judge has several.
        passed: Where the judge itself decides; else ``pass_at`` does, or the value where it is true or false.
        raw: The rating on the judge's own scale; the value unless given.
        label: The rating in a word.
        rationale: The reasons. It may quote the trace, as those of any judge.
    """

    value: bool | float
    metric: str | None = None
    passed: bool | None = None
    raw: float | str | None = None
    label: str | None = None
    rationale: str | None = None


Result: TypeAlias = bool | float | Score | Sequence[Score] | None
"""What a judge says of a trace. None, or no score at all, means that it cannot tell: it abstains."""

R = TypeVar("R", bound=Result | Awaitable[Result])


@dataclass(frozen=True)
class CodeJudge(Generic[R]):
    """A function of a trace with what a worker must know of it. It can be called as the function."""

    function: Callable[[Trace], R]
    needs: Needs
    metrics: tuple[Metric, ...]
    pass_at: float | None
    version: str | None
    asks: str
    time_limit_s: float

    def __call__(self, trace: Trace) -> R:
        """Call the function."""
        return self.function(trace)

    def metrics_of(self, name: str) -> tuple[Metric, ...]:
        """Give its metrics; one that bears the judge's name unless it declares others."""
        if self.metrics:
            return self.metrics
        if self.pass_at is not None:
            return (Metric(name, "0..1", f">= {self.pass_at:g}", pass_at=self.pass_at),)
        return (Metric(name, "0 or 1", "true") if self._may_be_bool() else Metric(name, "0..1", None),)

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that change with what it declares, and with its version or else its file.

        Raises:
            CodeError: It has neither a version nor a file.
        """
        version = self.version or self._source()
        needs = [need if isinstance(need, str) else (type(need).__name__, *need) for need in self.needs]
        identity = (version, needs, self.metrics_of(""))
        return hashlib.blake2b(msgspec.json.encode(identity), digest_size=16).hexdigest()

    def _source(self) -> str:
        try:
            source = text_of(sys.modules[self.function.__module__])
        except (AttributeError, KeyError, OSError) as error:
            raise CodeError('has no file to tell versions by; write @judge(version="1")') from error
        return hashlib.blake2b(source, digest_size=16).hexdigest()

    def _may_be_bool(self) -> bool:
        """Tell whether true and false are among what the function says to return; one that says nothing may."""
        said = getattr(self.function, "__annotations__", {}).get("return", bool)
        text = said if isinstance(said, str) else inspect.formatannotation(said)
        return _SAYS_BOOL.search(text) is not None


@overload
def judge(function: Callable[[Trace], R], /) -> CodeJudge[R]: ...


@overload
def judge(
    *,
    needs: Needs = ...,
    metrics: Sequence[Metric] = ...,
    pass_at: float | None = ...,
    version: str | None = ...,
    asks: str | None = ...,
    time_limit_s: float = ...,
) -> Callable[[Callable[[Trace], R]], CodeJudge[R]]: ...


def judge(
    function: Callable[[Trace], Any] | None = None,
    /,
    *,
    needs: Needs = ("output",),
    metrics: Sequence[Metric] = (),
    pass_at: float | None = None,
    version: str | None = None,
    asks: str | None = None,
    time_limit_s: float = _TIME_LIMIT_S,
) -> Any:
    """Make a judge of a function, which may be asynchronous, and which says what ``Result`` says.

    Args:
        function: Where nothing else is given: `@judge`.
        needs: Fields of the trace without which it is not called; a tuple means exactly one of them.
        metrics: What it scores; one metric with the judge's name unless given.
        pass_at: The least value of that one, above 0, that passes. Without it numbers neither pass nor fail; true and
            false do, where the function says that it returns them.
        version: What tells one version from the next: a new one begins new series. Unless given it is the content of
            the file in which the function stands, and of no other file.
        asks: One sentence for lists; the first line of the function's description unless given.
        time_limit_s: How long one trace may take unless the configuration says; the process is killed then.

    Raises:
        CodeError: One of these is not as it must be.
    """

    def make(function: Callable[[Trace], R]) -> CodeJudge[R]:
        check_function(function)
        said = asks or (inspect.getdoc(function) or "A judge in Python.").partition("\n")[0]
        return CodeJudge(function, needs, tuple(metrics), pass_at, version, said, time_limit_s)

    check_needs(needs)
    check_metrics(metrics, pass_at)
    check_rest(version, asks, time_limit_s)
    return make if function is None else make(function)
