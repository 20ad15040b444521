"""What users and running systems rely on, in one golden file: a change of it is a change that must be meant.

It holds the options of all commands, the configuration's keys with their defaults, metrics, keys in Redis, scripts, and
the fields of each ``--json``. Versions of judges are in tests/judges/golden_catalogue.txt. The hash of a script leaves
out comments. After a change that is meant:
UPDATE_GOLDEN=1 .venv/bin/pytest tests/pipeline/test_frozen.py
"""

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
import pytest
from support.key_names import built_names, spaces_of_keys
from support.pipeline import Pipeline, make_traces
from support.processes import wait_until
from support.tables import check_golden, read_table

from docs.metrics import all_metrics
from worker.cli import cli
from worker.core.storage.client import script_sources
from worker.core.storage.keys import Key

GOLDEN = Path(__file__).with_name("frozen.txt")
TABLE = read_table(__file__, "documents")
"""Commands that print JSON, the installation in which they run, and the fields whose keys are data."""
CONFIGURATION = Path(__file__).parents[2] / "docs/reference/configuration.md"


def commands(group: click.Group, *names: str) -> Iterator[str]:
    """Yield each command with its arguments and options."""
    with click.Context(group) as context:
        for name in sorted(group.list_commands(context)):
            command = group.get_command(context, name)
            assert command is not None
            parts = []
            for parameter in command.params:
                text = "/".join((*parameter.opts, *parameter.secondary_opts))
                is_repeatable = isinstance(parameter, click.Option) and parameter.multiple
                parts.append(text.upper() if isinstance(parameter, click.Argument) else text + "*" * is_repeatable)
            yield " ".join(("command", *names, name, *sorted(parts)))
            if isinstance(command, click.Group):
                yield from commands(command, *names, name)


def configuration() -> Iterator[str]:
    """Yield each key of the configuration with its default."""
    section = ""
    for line in CONFIGURATION.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif row := re.match(r"\| (`\w+`) \| (.*?) \| ", line):
            yield f"key {section}: {row[1]} = {row[2]}"


def metrics() -> Iterator[str]:
    """Yield each metric with its type and labels."""
    for metric in all_metrics():
        yield f"metric tracejudge_{metric.name} {metric.kind.__name__.lower()} {','.join(metric.labels)}"


def redis_keys() -> Iterator[str]:
    """Yield each key in Redis: the name, and what the code says of its type and TTL."""
    for member, names in (declared for space in spaces_of_keys() for declared in built_names(space)):
        if isinstance(member, Key):
            yield f"redis {member.name!r} {member.text!r}"
        elif names:
            yield f"redis {' '.join(names)} {inspect.getdoc(member)}"


def scripts() -> Iterator[str]:
    """Yield each script with the hash of its text without comments and empty lines."""
    for name, text in script_sources().items():
        code = (line.rstrip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--"))
        yield f"script {name} {hashlib.blake2b(chr(10).join(code).encode(), digest_size=8).hexdigest()}"


def fields(value: object, place: str = "") -> Iterator[str]:
    """Yield the places of a JSON document; keys that are data and not names are `*`."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            is_name = re.fullmatch(r"[a-z][a-z0-9_]*", name) and place.rpartition(".")[2] not in TABLE["data"]
            yield from fields(inner, f"{place}.{name if is_name else '*'}")
    elif isinstance(value, list):
        yield from (line for inner in value for line in fields(inner, f"{place}[]"))
    else:
        yield place


ROWS = '{"input": "Where is it?", "output": "It is here.", "context": ["It is here."], "tags": {"human": "yes"}}\n' * 30


def documents(pipeline: Pipeline, folder: Path) -> Iterator[str]:
    """Yield the fields of the documents that commands print after a worker has judged some traces."""
    pipeline.worker(models=TABLE["models"], rules=TABLE["rules"], give_up_after="1s")
    traces = make_traces(40)
    pipeline.publish(traces)
    pipeline.add(t=b"no trace")
    wait_until(lambda: pipeline.account().settled and pipeline.account().dead > 0, 60, "verdicts and dead letters")
    (folder / "rows.jsonl").write_text(ROWS, encoding="utf-8")
    label = {"judge": "groundedness", "label": "yes"}
    labels = (json.dumps({**label, "trace_id": trace.trace_id, "span_id": trace.span_id}) for trace in traces)
    (folder / "labels.jsonl").write_text("\n".join(labels), encoding="utf-8")
    names = {"TRACE": traces[0].trace_id}
    for command in TABLE["documents"]:
        words = [names.get(word, word) for word in command.split()]
        ended = pipeline.program(*words, models=TABLE["models"], rules=TABLE["rules"])
        code = ended.wait(120)
        texts = ended.stdout.splitlines() if ended.stdout.startswith("{") else [ended.stdout or "null"]
        lines = [json.loads(text) for text in texts]
        if command.startswith("dead list"):
            names["LETTER"] = lines[0]["id"]
        assert lines != [None], f"{command}: exit code {code}, {ended.stderr}"
        places = dict.fromkeys(place for line in lines for place in fields(line))
        yield f"json {command}: {' '.join(sorted(places))}"


@pytest.mark.slow("a worker and twenty commands")
def test_the_public_contract_equals_the_golden_file(pipeline: Pipeline, tmp_path: Path) -> None:
    parts: tuple[Callable[[], Iterator[str]], ...] = (
        lambda: commands(cli),
        configuration,
        metrics,
        redis_keys,
        scripts,
        lambda: documents(pipeline, tmp_path),
    )
    actual = "\n".join(line for part in parts for line in sorted(part())) + "\n"
    check_golden(GOLDEN, actual)
