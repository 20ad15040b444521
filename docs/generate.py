"""Write the reference pages from the code, and the trace's JSON schema.

The stub of the package ``judges`` and the charts of docs/statistics.md are written as well.

`make generate` writes them; `make check` runs this with `--check`, which writes nothing and fails on a difference.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from deploy import generated
from docs import agreement, answers, charts, commands, errors, prompts, spine, stub, wire
from judges.core.model import ModelSettings
from judges.core.verdict import FINAL_REASONS, MEANINGS, REASONS, Verdict
from judges.custom import custom_prompt, guidance, instructions, template
from judges.custom import template as filling
from judges.custom.template_answer import AnswerTable
from judges.features.python import installed as code
from judges.models.registry import PROVIDERS
from judges.registry import catalogue
from judges.requests.redaction import Redact
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
from worker.base.monitor.feature import Monitor
from worker.core.config.settings import ExtensibleTable, JudgeCalibration, Rule, Settings, Where
from worker.core.features import installed_tables
from worker.core.telemetry.metrics import worker_metrics
from worker.features.board.access import BoardMetrics
from worker.features.board.feature import Board
from worker.features.budgets.feature import Budget
from worker.features.cascades.feature import Cascade
from worker.features.gateway.admission import GatewayMetrics
from worker.features.gateway.feature import Gateway, Token

__all__ = ["main"]

_PRECEDENCE: Final = """\
`tracejudge.toml` in the working folder (or `--config`, or `TRACEJUDGE_CONFIG`), then `TRACEJUDGE_*` variables, then
arguments; the later wins. Each key of the first table has a variable: `redis_url` is `TRACEJUDGE_REDIS_URL`; tables are
written as JSON there, lists with commas. Durations may be written as `"90s"`, `"15m"`, `"24h"`, sizes as `"64MiB"`,
`"1GiB"`.
"""
_OF_METRICS: Final = """\
Times are in seconds, scores lie in 0..1. Beside these metrics stand the standard `process_*`
metrics of Prometheus' client: by `process_start_time_seconds` the rules tell a counter that is new from one found late.
Name, type and labels of a stable metric change only with a note in the CHANGELOG; those of an experimental one may
change in any version. `series_labels` adds labels to every metric that bears `service` to `judge_model`.
"""
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
_WITHOUT_MONITOR: Final = """\
## The share without the monitor

Where no worker has the role `monitor`, the counters give the weighted share of passes, and its standard error from the
squared weights. They know nothing of sessions, so five verdicts in a conversation count as five; and `increase` ignores
the first value of a new counter.

```promql
sum by (service, judge, metric) (increase(tracejudge_verdict_weight_total{outcome="pass"}[6h]))
/
sum by (service, judge, metric) (increase(tracejudge_verdict_weight_total{outcome=~"pass|fail"}[6h]))
```

The number of equally weighted verdicts that would be as precise, for Wilson's interval:

```promql
sum by (service, judge, metric) (increase(tracejudge_verdict_weight_total{outcome=~"pass|fail"}[6h])) ^ 2
/
sum by (service, judge, metric) (increase(tracejudge_verdict_weight_squared_total{outcome=~"pass|fail"}[6h]))
```

Failing verdicts of safety judges, each of which an alert of your own may count:

```promql
sum by (service, judge) (increase(tracejudge_verdicts_total{judge="safety", outcome="fail"}[1h]))
```
"""
_PANELS: Final = """\
## Several models on one question

A rule with `combine` has a series for each of its models and one for all of them together, the panel, whose
`judge_model` is a name as `majority(gpt-6-luna,llama)`. It holds the combined verdict, and under the metric
`disagreement`, or `<metric>_disagreement` of a judge with several, how far the models differ. So a sum over
`judge_model` counts a question asked of three models four times. To count what was asked, leave panels out:

```promql
sum by (judge, metric, outcome) (
  increase(tracejudge_verdicts_total{judge_model!~"(majority|mean|min|max|all)[(].*[)]"}[1h])
)
```

The dashboards do so wherever they sum; where they tell judge models apart, a panel stands among them. A panel asks
nobody: requests, tokens and cost are those of its members. It lacks a score where too many of them do, and is then in
`tracejudge_unscored_total` beside them. Of the metrics that name no judge model `tracejudge_score_age_seconds` holds
panels as well, and `tracejudge_late_feedback_verdicts_total` leaves them out.

Several models are asked so that one of them may err. So the alerts about quality are raised for the panel, and not for
models whose verdicts rules want for nothing else: those that `tracejudge_panel_member` names. A model that any rule
asks alone raises them as ever. The alert about missing scores is raised for each, member or panel, by its own share.
"""
_SDK: Final = """\
The functions of the package `tracejudge`, with their signatures. [Producing traces](../publishing.md) and
[Wrapped clients](../wrapped-clients.md) have examples.
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
_TABLES: Final = frozenset(
    {
        "models",
        "rules",
        "where",
        "judges",
        "monitor",
        "redact",
        "answer",
        "gateway",
        "tokens",
        "budgets",
        "calibrations",
        "cascades",
    }
)
_FOLDER: Final = Path(__file__).parent / "reference"
_NOTE: Final = "<!-- Written by `make generate`; change the code, not this page. -->\n"
_ATTRIBUTE: Final = re.compile(r"^ {4}(\w+): (.+?)(?=^ {4}\w+: |\Z)", re.MULTILINE | re.DOTALL)


def main(given: list[str]) -> int:
    """Write or compare all pages; 1 when one differs."""
    asked = generated.arguments("python -m docs.generate", __doc__, _FOLDER).parse_args(given)
    # The stub stands beside the code, charts in a folder of their own, and with `--into` all beside the pages.
    is_here = asked.into == _FOLDER
    stub_folder = stub.FOLDER if is_here else asked.into
    charts_folder = charts.FOLDER if is_here else asked.into / charts.FOLDER.name
    found = [generated.run(asked.into, _pages(), check=asked.check)]
    found.append(generated.run(stub_folder, stub.pages(), check=asked.check))
    page_folder = _FOLDER.parent if is_here else asked.into
    found.append(generated.run(page_folder, {"spine.md": _NOTE + spine.page()}, check=asked.check, alone=False))
    found.append(generated.run(charts_folder, charts.pages(), check=asked.check))
    return max(found)


def _pages() -> dict[str, str]:
    return {
        "metrics.md": _metrics(),
        "configuration.md": _configuration(),
        "judges.md": _judges(),
        "verdicts.md": _verdicts(),
        "lint.md": _lint(),
        "sdk.md": _sdk(),
        "agreement.md": _NOTE + agreement.page(),
        "answers.md": _NOTE + answers.page(),
        "prompts.md": _NOTE + prompts.page(),
        "trace.schema.json": _schema(),
        "traces.md": _NOTE + wire.traces_page(),
        "receivers.md": _NOTE + wire.receivers_page(_fields),
        "commands.md": _NOTE + commands.page(),
        "errors.md": _NOTE + errors.page(),
    }


def _metrics() -> str:
    lines = [_NOTE, "# Metrics\n", _OF_METRICS]
    lines += ["| metric | type | unit | labels | stability | what |", "| --- | --- | --- | --- | --- | --- |"]
    for metric in dict.fromkeys((*worker_metrics(), *GatewayMetrics.rows().values(), *BoardMetrics.rows().values())):
        kind, labels = metric.kind.__name__.lower(), ", ".join(metric.labels) or "-"
        rest = f"{kind} | {metric.unit} | {labels} | {metric.stability} | {metric.help}"
        lines.append(f"| `tracejudge_{metric.name}` | {rest} |")
    return "\n".join([*lines, "", _PANELS, _WITHOUT_MONITOR])


def _configuration() -> str:
    parts, kinds = [_NOTE, "# Configuration\n", _PRECEDENCE], installed_tables()["receivers"].kinds
    sections: Sequence[tuple[str, type[Struct]]] = (
        ("`[models.NAME]`", ModelSettings),
        ("`[[calibrations]]`", JudgeCalibration),
        ("`[[rules]]`", Rule),
        ("`where` of a rule", Where),
        ("`[cascades.NAME]`", Cascade),
        ("`[budgets.NAME]`", Budget),
        *((f'`[receivers.NAME]` with `kind = "{kind}"`', struct) for kind, struct in kinds.items()),
        ("`[monitor]`", Monitor),
        ("`[redact]`", Redact),
        ("`[gateway]`", Gateway),
        ("`[gateway.tokens.NAME]`", Token),
        ("`[board]`", Board),
    )
    rows = {"Top level": _keys(Settings), **{title: _keys(struct) for title, struct in sections}}
    for title, fields in rows.items():
        parts.append(f"## {title}\n")
        parts += ["| key | default | what |", "| --- | --- | --- |"]
        parts += [f"| `{name}` | {default} | {text} |" for name, default, text in fields]
        parts.append("")
    return "\n".join(parts)


def _keys(struct: type[Struct]) -> Iterator[tuple[str, str, str]]:
    """Yield the keys of a table: those of the core, then those of features."""
    if not issubclass(struct, ExtensibleTable):
        yield from _fields(struct)
        return
    yield from (row for row in _fields(struct) if row[0] != "tables")
    for key, table in installed_tables(struct.extension).items():
        is_long = key in _TABLES or table.is_named
        default = (
            f"`{msgspec.json.encode(table.default).decode()}`"
            if not is_long
            else "see right"
            if key in _TABLES
            else "-"
        )
        yield key, default, " ".join(table.text.split())


def _fields(struct: type[Struct]) -> Iterator[tuple[str, str, str]]:
    described = {
        name: text for each in reversed(struct.__mro__) for name, text in _ATTRIBUTE.findall(inspect.getdoc(each) or "")
    }
    for field in msgspec.structs.fields(struct):
        text = " ".join(described.get(field.name, "").split())
        owners = [f"`{name}`" for name, provider in PROVIDERS.items() if field.name in provider.own_settings]
        if struct is ModelSettings and owners:
            text = f"{text} Only with {' and '.join(owners)}."
        if field.default is msgspec.UNSET:
            default = "-"
        elif field.name in _TABLES and not field.required:
            default = "see right"
        elif field.default is not msgspec.NODEFAULT:
            default = f"`{msgspec.json.encode(field.default).decode()}`"
        else:
            default = "required" if field.required else "-"
        yield field.encode_name, default, text


def _lint() -> str:
    lines = [_NOTE, "# Findings of `tracejudge lint`\n", _OF_LINT]
    lines += ["| code | name | severity | what |", "| --- | --- | --- | --- |"]
    lines += [f"| `{one.code}` | `{one.name}` | {one.severity} | {one.meaning} |" for one in CODES]
    return "\n".join(lines) + "\n"


def _judges() -> str:
    lines = [_NOTE, "# Judges\n", "| judge | asks | needs | metric | scale | passes | models |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for judge in catalogue().values():
        needs = ", ".join(judge.needs_in_words)
        for metric in judge.metrics:
            name = f"`{metric.name}`"
            rule, forms = f"{metric.scale} | {metric.passes}", ", ".join(judge.forms)
            lines.append(f"| `{judge.name}` | {judge.asks} | {needs} | {name} | {rule} | {forms} |")
    lines += ["", "## Settings\n", _JUDGE_SETTINGS]
    lines += ["| judge | key | default | what |", "| --- | --- | --- | --- |"]
    for judge in catalogue().values():
        for name, default, text in _fields(type(judge.settings)):
            lines.append(f"| `{judge.name}` | `{name}` | {default} | {text} |")
    lines += ["", "## Judges of your own\n", _OWN_JUDGES]
    for title, struct in _OWN:
        lines += [f"### {title}\n", "| key | default | what |", "| --- | --- | --- |"]
        lines += [f"| `{name}` | {default} | {text} |" for name, default, text in _fields(struct)]
        lines.append("")
    lines.append(_VARIABLES)
    lines += ["| variable | stands for |", "| --- | --- |"]
    meanings: dict[str, list[str]] = {}
    for name, source in filling.KNOWN.items():
        meanings.setdefault(source.meaning, []).append(f"`{name}`")
    lines += [f"| {', '.join(names)} | {meaning} |" for meaning, names in meanings.items()]
    return "\n".join(lines) + "\n"


def _verdicts() -> str:
    lines = [_NOTE, "# Verdicts\n", _VERDICTS, "| field | what |", "| --- | --- |"]
    lines += [f"| `{name}` | {text} |" for name, _, text in _fields(Verdict)]
    lines += ["", "## Outcomes in metrics\n", _OUTCOMES, "## Why there is no score\n"]
    lines += ["| reason | stands for good | what |", "| --- | --- | --- |"]
    for reason in REASONS:
        stands = "yes" if reason in FINAL_REASONS else "no: tried again, then a dead letter"
        lines.append(f"| `{reason}` | {stands} | {MEANINGS[reason]} |")
    return "\n".join(lines) + "\n"


def _sdk() -> str:
    lines = [_NOTE, "# The SDK\n", _SDK]
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
