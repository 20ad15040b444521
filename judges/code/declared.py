"""Check what the author of a judge in Python declares; each mistake is told with its mend."""

import inspect
from collections.abc import Sequence
from typing import Final

from judges.code.errors import CodeError
from judges.judge import Metric
from judges.names import RULE, is_name
from tracejudge import Trace

__all__ = ["check_function", "check_metrics", "check_needs", "check_rest"]

_MAX_TIME_S: Final = 3600
"""As in a judge's table; with no limit at all its timers could not be set."""


def check_function(function: object) -> None:
    """See whether it can be called with a trace and nothing else.

    Raises:
        CodeError: It cannot.
    """
    if not callable(function) or isinstance(function, type):
        raise CodeError("@judge stands above a function of a trace")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # of C, and says nothing of itself
    try:
        signature.bind(None)
    except TypeError:
        name = getattr(function, "__name__", "the function")
        raise CodeError(f"{name}{signature} must take one argument, the trace; give the others defaults") from None


def check_needs(needs: object) -> None:
    """See whether all are fields of a trace.

    Raises:
        CodeError: One is not.
    """
    if isinstance(needs, str):
        raise CodeError(f'needs must be a tuple, as ("{needs}",)')
    if not isinstance(needs, Sequence):
        raise CodeError('needs must be a tuple of fields of a trace, as ("output", "context")')
    for need in needs:
        for name in need if isinstance(need, tuple) else (need,):
            if name not in Trace.__struct_fields__:
                raise CodeError(f"needs: a trace has no field {name!r}; it has {', '.join(Trace.__struct_fields__)}")


def check_metrics(metrics: object, pass_at: object) -> None:
    """See whether each bears a name of its own and a pass mark that can be reached.

    Raises:
        CodeError: One does not.
    """
    if not isinstance(metrics, Sequence) or not all(isinstance(metric, Metric) for metric in metrics):
        raise CodeError('metrics must be a tuple of Metric, as (Metric("polite", "0 or 1", "true"),)')
    if metrics and pass_at is not None:
        raise CodeError("pass_at is for the one metric of a judge that declares none; give each Metric its own")
    for metric in metrics:
        _check_metric(metric)
    if len({metric.name for metric in metrics}) < len(metrics):
        raise CodeError("two metrics bear one name; give each its own")
    _check_mark(pass_at)


def check_rest(version: object, asks: object, time_limit_s: object) -> None:
    """See whether the rest is of its type.

    Raises:
        CodeError: It is not.
    """
    if not isinstance(version, str | None):
        raise CodeError(f'version must be a text, as version="{version}"')
    if not isinstance(asks, str | None):
        raise CodeError("asks must be a text: one sentence for lists")
    if not isinstance(time_limit_s, int | float) or not 0 < time_limit_s <= _MAX_TIME_S:
        raise CodeError(f"time_limit_s must be above 0 and at most {_MAX_TIME_S}")


def _check_metric(metric: Metric) -> None:
    if not isinstance(metric.name, str) or not is_name(metric.name):
        raise CodeError(f"the metric {metric.name!r} bears no name for one; write {RULE}")
    if not isinstance(metric.scale, str) or not isinstance(metric.pass_rule, str | None):
        raise CodeError(f"the metric {metric.name}: scale and pass_rule are texts for people, as '0..1' and '>= 0.5'")
    if metric.pass_at is not None and metric.pass_rule is None:
        raise CodeError(f"the metric {metric.name} has pass_at and no pass_rule; say in words when it passes")
    _check_mark(metric.pass_at)


def _check_mark(pass_at: object) -> None:
    if pass_at is not None and not (isinstance(pass_at, int | float) and 0 < pass_at <= 1):
        raise CodeError("pass_at must be above 0 and at most 1; without it numbers neither pass nor fail")
