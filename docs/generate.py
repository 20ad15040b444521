"""Write the reference pages from the code, and the trace's JSON schema.

The stub of the package ``judges`` and the charts of docs/statistics.md are written as well.

`make generate` writes them; `make check` runs this with `--check`, which writes nothing and fails on a difference.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from deploy import generated
from docs import (
    agreement,
    answers,
    charts,
    commands,
    completion,
    configuration,
    errors,
    metrics,
    prompts,
    spine,
    stub,
    wire,
)
from judges.core.verdict import FINAL_REASONS, MEANINGS, REASONS, Verdict
from judges.custom import custom_prompt, guidance, instructions, template
from judges.custom import template as filling
from judges.custom.template_answer import AnswerTable
from judges.features.python import installed as code
from judges.registry import catalogue
from tracejudge import (
    OpenTrace,
    Trace,
    current,
    feedback,
    flush,
    init,
    observe,
    publish,
    shutdown,
    trace,
    wrap_anthropic,
    wrap_openai,
)
from tracejudge.content.field_names import INPUT_TOKENS, OTHER_NAMES, OUTPUT_TOKENS, SYSTEM_PROMPTS
from worker.base.doctor.lint import CODES

__all__ = ["main"]

_OF_LINT: Final = """\
With an error no worker starts; with a warning it starts, and something is probably a mistake. Codes keep their meaning.
"""
_JUDGE_SETTINGS: Final = """\
Under `[judges.NAME]`. Another setting makes another version of the judge, and so a new series of each of its metrics.
"""
_OWN_JUDGES: Final = """\
Under `[judges.NAME]`, or as a file `NAME.toml` in the folder that `judges_folder` names. A table holds exactly one of
`instructions`, `custom_prompt`, `template`, `code` and `based_on`, and keys that go with it. `tracejudge judges test
NAME.toml TRACES --label TAG` measures a file before any worker reads it.

`result` is `"yes/no"` (yes passes), `"boolean"` (true passes), `{ integer = [1, 5], pass_at = 4 }`,
`{ number = [0, 1], pass_at = 0.7 }`, `{ labels = { good = 2, fair = 1, poor = 0 }, pass = ["good"] }` or
`{ labels = ["bug", "question"], pass = ["question"] }`. A range takes a `direction`: `"higher"` is good unless it says
`"lower"`, or `"none"` where neither end is. Without `pass_at` or `pass` nothing passes or fails; labels without numbers
need `pass`.
"""
_OWN: Final = (
    ("With `instructions`", instructions.Definition),
    ("With `custom_prompt`", custom_prompt.Definition),
    ("With `template`", template.Definition),
    ("`[answer]` of a judge with a template", AnswerTable),
    ("With `code`", code.Definition),
    ("With `based_on`", guidance.Definition),
)
_VARIABLES: Final = """\
### Variables of templates

Each is one that published files use; a template is shown the parts in the order in which it declares them.
"""
_VERDICTS: Final = """\
One JSON object a verdict: a line of `tracejudge evaluate --output` and of `tracejudge tail --json` (which adds `dead`),
and an entry of the stream `verdicts`. Fields that hold nothing are left out.
"""
_OUTCOMES: Final = """\
`tracejudge_verdicts_total` counts each verdict under each metric of its judge, with one of: `pass`, `fail`; `unrated`,
scored without a pass rule; `abstained`, the judge said that it cannot tell; `unscored`, for a reason of the table
below, which `tracejudge_unscored_total` counts by `reason`.
"""
_SDK: Final = """\
The functions of the package `tracejudge`, with their signatures. [Publishing](../publishing.md) has examples.
"""
_FUNCTIONS: Final = (
    publish,
    observe,
    trace,
    current,
    OpenTrace.set,
    feedback,
    flush,
    shutdown,
    wrap_openai,
    wrap_anthropic,
)
_INIT: Final = """\
Arguments of `tracejudge.init`. Some may come from a variable instead, as its description says; the argument wins.
"""
_OTHER_NAMES: Final = """\
Names that `publish` and the other ways to publish read as a field, also in camel case, with dashes or
with dots. Of several for one field the first in this list counts. Any other name becomes a tag.
"""
_ARGUMENT: Final = re.compile(r"^ {4}(\w+): (.+?)(?=^ {4}\w+: |^\S|\Z)", re.MULTILINE | re.DOTALL)
_FOLDER: Final = Path(__file__).parent / "reference"
_NOTE: Final = "<!-- Written by `make generate` from {source} and the code that it reads. -->\n"


def main(given: list[str]) -> int:
    """Write or compare all pages; 1 when one differs."""
    asked = generated.arguments("python -m docs.generate", __doc__, _FOLDER).parse_args(given)
    pages = {name: _page(write) for name, write in _PAGES.items()} | {"trace.schema.json": _schema()}
    # The stub stands beside the code, charts in a folder of their own, and with `--into` all beside the pages.
    is_here = asked.into == _FOLDER
    stub_folder = stub.FOLDER if is_here else asked.into
    charts_folder = charts.FOLDER if is_here else asked.into / charts.FOLDER.name
    found = [generated.run(asked.into, pages, check=asked.check)]
    found.append(generated.run(stub_folder, stub.pages(), check=asked.check))
    page_folder = _FOLDER.parent if is_here else asked.into
    found.append(generated.run(page_folder, {"spine.md": _page(spine.page)}, check=asked.check, alone=False))
    found.append(generated.run(charts_folder, charts.pages(), check=asked.check))
    table_folder = completion.FOLDER if is_here else asked.into
    found.append(generated.run(table_folder, completion.pages(), check=asked.check, alone=False))
    return max(found)


def _page(write: Callable[[], str]) -> str:
    """Write a page with a note that names the file of its text."""
    return _NOTE.format(source=Path(inspect.getfile(write)).relative_to(_FOLDER.parent.parent)) + write()


def _lint() -> str:
    lines = ["# Findings of `tracejudge lint`\n", _OF_LINT]
    lines += ["| code | name | severity | what |", "| --- | --- | --- | --- |"]
    lines += [f"| `{one.code}` | `{one.name}` | {one.severity} | {one.meaning} |" for one in CODES]
    return "\n".join(lines) + "\n"


def _judges() -> str:
    lines = ["# Judges\n", "| judge | asks | needs | metric | scale | passes | models |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for judge in catalogue().values():
        needs = ", ".join(judge.needs_in_words)
        for metric in judge.metrics:
            name = f"`{metric.name}`"
            rule, forms = f"{metric.scale} | {metric.passes}", ", ".join(judge.forms) or "none"
            lines.append(f"| `{judge.name}` | {judge.asks} | {needs} | {name} | {rule} | {forms} |")
    lines += ["", "## Settings\n", _JUDGE_SETTINGS]
    lines += ["| judge | key | default | what |", "| --- | --- | --- | --- |"]
    for judge in catalogue().values():
        for name, default, text in configuration.rows(type(judge.settings)):
            lines.append(f"| `{judge.name}` | `{name}` | {default} | {text} |")
    lines += ["", "## Judges of your own\n", _OWN_JUDGES]
    for title, struct in _OWN:
        lines += [f"### {title}\n", "| key | default | what |", "| --- | --- | --- |"]
        lines += [f"| `{name}` | {default} | {text} |" for name, default, text in configuration.rows(struct)]
        lines.append("")
    lines.append(_VARIABLES)
    lines += ["| variable | stands for |", "| --- | --- |"]
    meanings: dict[str, list[str]] = {}
    for name, source in filling.KNOWN.items():
        meanings.setdefault(source.meaning, []).append(f"`{name}`")
    lines += [f"| {', '.join(names)} | {meaning} |" for meaning, names in meanings.items()]
    return "\n".join(lines) + "\n"


def _verdicts() -> str:
    lines = ["# Verdicts\n", _VERDICTS, "| field | what |", "| --- | --- |"]
    lines += [f"| `{name}` | {text} |" for name, _, text in configuration.rows(Verdict)]
    lines += ["", "## Outcomes in metrics\n", _OUTCOMES, "## Why there is no score\n"]
    lines += ["| reason | stands for good | what |", "| --- | --- | --- |"]
    for reason in REASONS:
        stands = "yes" if reason in FINAL_REASONS else "no: tried again, then a dead letter"
        lines.append(f"| `{reason}` | {stands} | {MEANINGS[reason]} |")
    return "\n".join(lines) + "\n"


def _sdk() -> str:
    lines = ["# The SDK\n", _SDK]
    for function in _FUNCTIONS:
        lines += [*_function(function), ""]
    described = dict(_ARGUMENT.findall(inspect.getdoc(init) or ""))
    lines += ["## Settings of `init`\n", _INIT, "| argument | default | what |", "| --- | --- | --- |"]
    for name, parameter in inspect.signature(init).parameters.items():
        text = " ".join(described.get(name, "").split())
        lines.append(f"| `{name}` | `{parameter.default!r}` | {text} |")
    lines += ["", "## Other names of fields\n", _OTHER_NAMES, "| field | other names |", "| --- | --- |"]
    named = {
        **OTHER_NAMES,
        "usage.input_tokens": INPUT_TOKENS[1:],
        "usage.output_tokens": OUTPUT_TOKENS[1:],
        "messages, as the first one, of the role `system`": sorted(SYSTEM_PROMPTS),
    }
    for field, others in named.items():
        shown = field if " " in field else f"`{field}`"
        lines.append(f"| {shown} | {', '.join(f'`{other}`' for other in others)} |")
    return "\n".join(lines) + "\n"


def _function(function: Callable[..., object]) -> Iterator[str]:
    """Write a function of the SDK: its signature, and its docstring with a table of arguments."""
    described = inspect.getdoc(function) or ""
    text, _, rest = described.partition("\nArgs:\n")
    text, _, returned = text.partition("\nReturns:\n")
    returned = returned or rest.partition("\nReturns:\n")[2]
    signature = re.sub(r"\b(?:\w+\.)+(?=[A-Z_~])", "", str(inspect.signature(function))).replace("~", "")
    yield f"## `{function.__qualname__}`\n"
    yield f"```text\n{function.__qualname__}{signature}\n```\n"
    yield text.strip()
    if returned:
        yield f"\nReturns: {' '.join(returned.split())}"
    if arguments := _ARGUMENT.findall(rest):
        yield from ("\n| argument | what |", "| --- | --- |")
        yield from (f"| `{name}` | {' '.join(what.split())} |" for name, what in arguments)


def _schema() -> str:
    schema = msgspec.json.schema(Trace, schema_hook=lambda _: {"description": "any JSON"})
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"


_PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "metrics.md": metrics.page,
    "configuration.md": configuration.page,
    "judges.md": _judges,
    "verdicts.md": _verdicts,
    "lint.md": _lint,
    "sdk.md": _sdk,
    "agreement.md": agreement.page,
    "answers.md": answers.page,
    "prompts.md": prompts.page,
    "traces.md": wire.traces_page,
    "receivers.md": wire.receivers_page,
    "commands.md": commands.page,
    "errors.md": errors.page,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
