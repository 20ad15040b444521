"""The reference page of errors: exit codes, errors of commands, reasons that are counted, and events of the log.

Each has a code that stays: a word that is an error's name, the label of a metric, or the `event` of a log line. The
meanings that no code holds stand in `meanings.toml`; `docs.check` compares them with what the code raises and logs.
"""

import ast
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from docs.metrics import all_metrics
from judges.core.verdict import FINAL_REASONS, MEANINGS, REASONS
from tracejudge.delivery import buffer
from worker.base.input.unusable import NO_CONTENT

__all__ = ["page", "problems"]

_ROOT: Final = Path(__file__).parent.parent


_FINDING: Final = re.compile(
    r"(?:(?<!\.)\b(?:broken|warning|ok|misconfigured|Check|permissions)\(\s*|\b(?:name|part)(?:, \w+)? = )"
    r'f?"([a-z][^"]+)"'
)
TEXTS: Final[Mapping[str, Mapping[Any, Any]]] = tomllib.loads(
    (_ROOT / "docs/meanings.toml").read_text(encoding="utf-8")
)
_HEAD: Final = """\
# Errors

The code of an error is the word under which it is reported: the name below, the label of a metric, or the `event` of a
log line. Codes stay the same within a major version; texts may become clearer.
[Troubleshooting](../troubleshooting.md) begins with what you see.

## Exit codes

| code | when |
| --- | --- |
"""
_ENDS_HEAD: Final = """
## Errors of commands

A command that fails prints one line on standard error: `tracejudge: ` or `Error: `, what is wrong, where, and how to
fix it.

| error | exit code | when | what to do |
| --- | --- | --- | --- |
"""
_LISTS: Final = """
## Why an evaluation has no score

The `reason` of a verdict, and the label of `tracejudge_unscored_total`. A final reason stands in the ledger. With any
other reason the evaluation is tried again until `give_up_after`, and is then a dead letter with this reason.

| reason | final | when |
| --- | --- | --- |
"""
_DOCTOR: Final = """
## Findings of the doctor

The `name` of a finding of [`tracejudge doctor`](commands.md#tracejudge-doctor), whose `result` is `ok`, `warning` or
`broken`; each of the last two says how to fix it. `NAME` stands for a role, a model or a receiver.
Warnings about the configuration have the names of [`tracejudge lint`](lint.md).

"""
_EVENTS_HEAD: Final = """
## Warnings and errors of the log

The `event` of a line with the level `warning` or `error` of worker and gateway. Lines are JSON on standard error.

| event | what happened | what to do |
| --- | --- | --- |
"""


def page() -> str:
    """Write the page."""
    parts = [_HEAD, *(f"| {code} | {text} |\n" for code, text in TEXTS["exits"].items()), _ENDS_HEAD]
    for name, (_, code, meaning, fix) in TEXTS["errors"].items():
        parts.append(f"| `{name}` | {code} | {meaning} | {fix} |\n")
    parts.append(_LISTS)
    finals = {reason: "yes" if reason in FINAL_REASONS else "no" for reason in REASONS}
    parts += [f"| `{reason}` | {final} | {MEANINGS[reason]} |\n" for reason, final in finals.items()]
    for title, meanings in _closed_lists().items():
        parts.append(f"\n## {title}\n\n| reason | when |\n| --- | --- |\n")
        parts += [f"| `{reason}` | {text} |\n" for reason, text in meanings.items()]
    parts.append(_DOCTOR)
    parts.append(", ".join(f"`{name}`" for name in _doctor_names()) + ".\n")
    parts.append(_EVENTS_HEAD)
    parts += [f"| `{event}` | {meaning} | {fix} |\n" for event, (meaning, fix) in TEXTS["events"].items()]
    return "".join(parts)


def problems() -> Iterator[str]:
    """Compare the tables with the code."""
    for name, (place, *_) in TEXTS["errors"].items():
        if not _exists(*place.split(":")):
            yield f"docs/meanings.toml: {name}: there is no {place}"
    labels = {name: {*meanings} - {"title"} for name, meanings in TEXTS["labels"].items()}
    closed = (metric for metric in all_metrics() if metric.labels in (("reason",), ("outcome",)))
    values = {metric.name: {*metric.values} for metric in closed}
    for what, written, real in (
        *((f"value of {each}", labels.get(each, set()), values.get(each, set())) for each in {**labels, **values}),
        ("reason of dropped verdicts", {*TEXTS["export"]}, _export_reasons()),
        ("reason of listed traces", {*TEXTS["listed"]}, {NO_CONTENT}),
        ("event of the log", {*TEXTS["events"]}, set(_logged())),
    ):
        yield from (f"docs/meanings.toml: {what} without a meaning: {name}" for name in sorted(real - written))
        yield from (f"docs/meanings.toml: {what} that does not exist: {name}" for name in sorted(written - real))


def _exists(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return False


def _closed_lists() -> Mapping[str, Mapping[str, str]]:
    """Return the meanings of reasons and outcomes: of producers, of labels of the metrics that exist, of exporters."""
    labels = [TEXTS["labels"][metric.name] for metric in all_metrics() if metric.name in TEXTS["labels"]]
    return {
        "Why a service did not deliver a trace": _producer_reasons(),
        **{each["title"]: {value: text for value, text in each.items() if value != "title"} for each in labels},
        "Why the gateway lists a trace that it published": TEXTS["listed"],
        "Why an exporter drops a verdict": TEXTS["export"],
    }


def _producer_reasons() -> dict[str, str]:
    """Read the docstrings below the members of the enumeration."""
    source = inspect.getsource(buffer.Reason)
    found = re.findall(r'^    [A-Z_]+ = "(\w+)"\n    """(.+?)"""', source, re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.split()) for name, text in found}


def _export_reasons() -> set[str]:
    """Import the exporters, and collect their reasons."""
    paths = (path for path in (_ROOT / "worker").rglob("*.py") if "drop_reasons" in path.read_text(encoding="utf-8"))
    modules = (importlib.import_module(".".join(path.relative_to(_ROOT).with_suffix("").parts)) for path in paths)
    members = (member for module in modules for member in vars(module).values() if isinstance(member, type))
    return {reason for member in members for reason in getattr(member, "drop_reasons", ())}


def _doctor_names() -> list[str]:
    """List the names of findings, from the calls and assignments that hold them."""
    sources = (path.read_text(encoding="utf-8") for path in (_ROOT / "worker").rglob("*.py"))
    names = {name for text in sources if "base.doctor.finding import" in text for name in _FINDING.findall(text)}
    return sorted(re.sub(r"{.*?}", "NAME", name) for name in names)


def _logged() -> Iterator[str]:
    """Yield the events of warnings and errors of judges and worker; commands report to a person who waits."""
    paths = [path for folder in ("judges", "worker") for path in (_ROOT / folder).rglob("*.py")]
    for path in paths:
        if "cli" not in path.relative_to(_ROOT).parts:
            for call in _calls(path):
                is_log = isinstance(call.func, ast.Attribute) and "log" in ast.unparse(call.func.value).lower()
                name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                if call.args and (
                    (is_log and name in {"warning", "error", "critical"}) or name in {"_warn", "_log", "_report"}
                ):
                    texts = (re.sub(r"%s", "…", text) for text in _texts(call.args[0]))
                    yield from (text for text in texts if re.search(r"[a-z]", text))


def _calls(path: Path) -> Iterator[ast.Call]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _texts(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body), *_texts(node.orelse)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)]
    return []
