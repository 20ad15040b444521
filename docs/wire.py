"""The reference pages of what comes in and what goes out: the wire format of traces, and the receivers of verdicts."""

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec import inspect as kinds

from docs.configuration import rows
from docs.errors import TEXTS
from tracejudge.model import (
    Document,
    Feedback,
    LateFeedback,
    Message,
    ProducerReport,
    Span,
    Tool,
    ToolCall,
    Trace,
    Usage,
)
from worker.core.config.settings import Settings
from worker.core.features import import_attribute, installed_tables

__all__ = ["receivers_page", "traces_page"]

_TRACES: Final = """\
# Traces: the wire format, version 1

One call of a language model in production, or one request of an agent, is one JSON object in UTF-8, in one entry of the
Redis stream `tracejudge:traces` (`tracejudge` is the setting `prefix`). The SDK and the gateway write it for you; this
page is for programs that write it themselves. [The JSON schema](trace.schema.json) is for machines.

```text
XADD tracejudge:traces MAXLEN ~ 200000 * v 1 t '<JSON>'
```

An entry has the field `v`, the version, and one of:

| field | holds |
| --- | --- |
| `t` | a trace |
| `f` | feedback that comes after its trace |
| `r` | the report of a producer |

An entry over `max_trace_bytes` (MAX_BYTES) is invalid. Readers are lenient:
[other names](sdk.md#other-names-of-fields), camel case, ISO 8601 and `null` for absent are read as well, a field that
cannot be used is left out and counted, and unknown fields are kept out. A trace is invalid only without a trace id, a
service, or any content. [Why an entry is invalid](errors.md#why-a-stream-entry-is-invalid) lists the reasons.

The smallest useful trace:

```json
{"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "service": "shop", "input": "Is tea hot?", "output": "Yes."}
```
"""
_STRUCTS: Final[Mapping[str, type[Struct]]] = {
    "A trace": Trace,
    "An item of `messages`": Message,
    "An item of `context`": Document,
    "An item of `tool_calls` and of `expected_tools`": ToolCall,
    "An item of `tools`": Tool,
    "An item of `spans`": Span,
    "`usage`": Usage,
    "`feedback`": Feedback,
    "Late feedback, `f`": LateFeedback,
    "The report of a producer, `r`": ProducerReport,
}
_RECEIVERS: Final = """\
# Receivers

Where verdicts are sent, by `kind`, with the keys of each `[receivers.NAME]` and the reasons why it drops a verdict.
[Receivers](../receivers.md) says how to set one up,
[Errors](errors.md#why-an-exporter-drops-a-verdict) what the reasons mean. `tracejudge_export_dropped_total` counts them
by exporter and reason, and `tracejudge doctor` tries each receiver.
"""


def traces_page() -> str:
    """Write the page on traces."""
    mebibytes = f"{Settings().max_trace_bytes >> 20} MiB"
    parts = [_TRACES.replace("MAX_BYTES", mebibytes)]
    for title, struct in _STRUCTS.items():
        parts.append(f"## {title}\n\n{_doc(struct)}\n\n| field | type | meaning |\n| --- | --- | --- |")
        for field in kinds.type_info(struct).fields:  # type: ignore[attr-defined]
            required = " (required)" if field.required else ""
            texts, name = TEXTS["trace_fields"], field.encode_name
            meaning = texts.get(f"{struct.__name__}.{name}") or texts[name]
            parts.append(f"| `{field.encode_name}`{required} | {_kind(field.type)} | {meaning} |")
        parts.append("")
    return "\n".join(parts)


def receivers_page() -> str:
    """Write the page on receivers."""
    parts = [_RECEIVERS]
    for kind, struct in installed_tables()["receivers"].kinds.items():
        exporter = import_attribute(struct.exporter)
        module = sys.modules[exporter.__module__]
        about = (inspect.getdoc(struct) or "").split("\nAttributes:")[0].strip()
        reasons = ", ".join(f"`{reason}`" for reason in exporter.drop_reasons)
        sent = (module.__doc__ or "").splitlines()[0]
        parts += [f"## {kind}\n", f"{sent}\n", f"{about}\n", f"Drops a verdict for: {reasons}.\n"]
        parts += ["| key | default | what |", "| --- | --- | --- |"]
        parts += [f"| `{name}` | {default} | {text} |" for name, default, text in rows(struct)]
        parts.append("")
    return "\n".join(parts)


def _doc(struct: type[Struct]) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", " ".join((inspect.getdoc(struct) or "").split()))


def _kind(found: Any) -> str:
    """Name a type in JSON's words."""
    match found:
        case kinds.UnionType():
            return " or ".join(_kind(one) for one in found.types if not isinstance(one, kinds.NoneType))
        case kinds.ListType():
            return f"list of {_kind(found.item_type)}"
        case kinds.DictType():
            return f"object of {_kind(found.value_type)}"
        case kinds.StructType():
            return "object"
    words: dict[type, str] = {kinds.FloatType: "number", kinds.IntType: "number", kinds.StrType: "string"}
    return words.get(type(found), "any JSON")
