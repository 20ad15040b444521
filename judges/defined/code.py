"""A judge in Python: what the table names is imported here, and runs in processes of its own (``judges.code``)."""

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from judges.code.errors import CodeError
from judges.code.making import Limits
from judges.code.making import make as make_judge
from judges.code.starting import load_at_start
from judges.defined.definition import asked, convert
from judges.defined.errors import DefinitionError, short
from judges.judge import Judge

__all__ = ["Definition", "make"]

_KEY: Final = "code"


class Definition(Struct, frozen=True, forbid_unknown_fields=True):
    """The table of such a judge.

    Attributes:
        code: `package.module:name`, or `file.py:name` of a file.
        asks: One sentence for lists; the first line of the function's description unless given.
        time_limit_s: How long one trace may take; what the judge itself says unless given.
        processes: How many traces may be judged at the same time, each in a process of its own.
        memory_mib: How much memory each process may take, in MiB of address space; any unless given.
        environment: Names of variables that the judge finds besides those of the worker that are no secrets.
    """

    code: str
    asks: str | None = None
    time_limit_s: Annotated[float, Meta(gt=0, le=3600)] | None = None
    processes: Annotated[int, Meta(ge=1, le=64)] = 1
    memory_mib: Annotated[int, Meta(ge=128, le=1 << 20)] | None = None
    environment: tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...] = ()


def make(name: str, table: Mapping[str, object]) -> Judge:
    """Make a judge of its table.

    Raises:
        DefinitionError: With the key that is wrong, and the mend.
    """
    definition = convert(table, Definition)
    limits = Limits(definition.time_limit_s, definition.processes, definition.memory_mib, definition.environment)
    try:
        loaded = load_at_start(definition.code, definition.environment)
        return make_judge(name, definition.code, loaded, asks=asked(definition.asks, loaded.judge.asks), limits=limits)
    except CodeError as error:
        raise DefinitionError(_KEY, f"{short(definition.code)}: {error}") from error
