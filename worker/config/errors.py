"""Error texts of the configuration: where a value is wrong and what belongs there, never the value."""

from typing import Any

import msgspec
from msgspec import inspect

from judges.custom.definition import MISSING, PATH, UNKNOWN, expected, fields_of, nearest, type_at
from worker.config.settings import SettingsError


def describe_error(place: str, kind: Any, error: msgspec.ValidationError) -> str:
    """Describe the error of a conversion to ``kind``; ``place`` is the file or variable and the converted key."""
    text = str(error)
    found = PATH.search(text)
    path = found[1] if found else ""
    here = f"{place}{'' if not path or path.startswith('[') else '.'}{path}"
    wanted = type_at(inspect.type_info(kind), path)
    example = ", as { input = 0.10, output = 0.50 }" if path.split(".")[0] == "price" else ""
    if name := UNKNOWN.search(text):
        return f"{here}.{name[1]}: unknown key{nearest(name[1], fields_of(wanted))}"
    if name := MISSING.search(text):
        return f"{here}.{name[1]}: is missing; it must be {expected(fields_of(wanted)[name[1]])}{example}"
    return f"{here}: must be {expected(wanted)}{example}"


def with_rule_name(error: SettingsError, name: object, count: int) -> SettingsError:
    """Add the name of a rule to an error that has its index; a rule that is the only one needs none."""
    return SettingsError(f"{error} (rule {name!r})") if count > 1 else error
