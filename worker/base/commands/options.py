"""Options, output and helpers that several commands share."""

import datetime as dt
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import click
import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from judges.core.backoff import backoff_s
from judges.core.faults import first_raised
from judges.core.judge import Judge, Metric
from judges.core.prompt import neutralise
from judges.custom.definition import nearest
from judges.registry import check_tables, display, find_file, load_judges, read_judge
from worker.core.config.loading import load
from worker.core.config.reading import config_path, place_of, redis_place, unknown_variables
from worker.core.config.settings import Settings, SettingsError

if TYPE_CHECKING:
    from worker.core.storage.client import Store

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([smhd])")

# Standard output carries the result. Colours are those of outcomes: none for digits and quotes in texts of others.
OUT: Final = Console(highlight=False)
# Standard error carries progress and remarks.
NOTES: Final = Console(stderr=True, highlight=False)
PAGE_COLUMNS: Final = 80  # Of pages such as the report, also in a pipe.


def options(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Combine several options into one decorator."""

    def decorate(function: F) -> F:
        for option in reversed(decorators):
            function = option(function)
        return function

    return decorate


CONFIG = click.option("--config", metavar="FILE", help="Configuration file; else tracejudge.toml if there is one.")
# Files of the command line: traces, which may have broken texts, and inputs, which may be standard input.
TRACE_FILE: Final = click.File("r", encoding="utf-8", errors="surrogateescape")
INPUT: Final = click.Path(exists=True, dir_okay=False, allow_dash=True)


def _is_json(_: click.Context, __: click.Parameter, form: str | None) -> bool:
    return form == "json"


_JSON: Final = "Print JSON on standard output and nothing else."
# `--format json` is the same: other tools write it so.
JSON: Final = options(
    click.option("--json", "as_json", flag_value="json", callback=_is_json, help=_JSON),
    click.option("--format", "as_json", type=click.Choice(("text", "json")), callback=_is_json, hidden=True),
)
# The options of every command that uses Redis.
REDIS: Final = options(
    CONFIG, click.option("--redis-url", metavar="URL", help="Address of the only Redis; else those configured.")
)
# The first options of every filter of verdicts; each command words the others itself.
PATTERNS: Final = options(
    click.option(
        "--service",
        "services",
        multiple=True,
        metavar="PATTERN",
        help="Only these services, with *, ? and [...] as in rules.",
    ),
    click.option("--judge", "judges", multiple=True, metavar="PATTERN", help="Only these judges."),
)


def amount(count: int, noun: str) -> str:
    """Write a number with its noun."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def reasons_in_words(unscored: Mapping[str, int]) -> str:
    """List counts by reason on one line."""
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(unscored.items())) or "none"


def plain(text: str) -> str:
    """Put foreign text on one line, with nothing in it that rich or the terminal interprets."""
    return escape(neutralise(" ".join(text.split())))


def note(text: str) -> None:
    """Print a remark on standard error, as it is."""
    NOTES.print(text, markup=False, soft_wrap=True)


def print_json(document: object) -> None:
    """Print a JSON document on one line of standard output."""
    print(msgspec.json.encode(document).decode(), flush=True)


def print_line(console: Console, line: str) -> None:
    """Print a sentence, wrapped on a terminal only."""
    console.print(line, markup=False, soft_wrap=not console.is_terminal)


def print_table(console: Console, table: Table) -> None:
    """Print a table, at least as wide as its title; wrapped on a terminal only."""
    if isinstance(table.title, str):
        table.min_width = cell_len(console.render_str(table.title).plain)
    if console.is_terminal:
        console.print(table)
    else:
        Console(file=console.file, width=1000).print(table)


def counts_table(title: str, rows: Iterable[tuple[str, int, str]] = ()) -> Table:
    """Lay out counts with their names and meanings."""
    table = Table(title=title, show_header=False, box=None, padding=(0, 2))
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, count, meaning in rows:
        table.add_row(name, f"{count:,}", meaning)
    return table


def connect(config: str | None, redis_url: str | None, *, needs_all: bool = False) -> "tuple[Settings, Store]":
    """Load the settings and connect to Redis, as ``open_store`` does."""
    settings = load(os.environ, config, {"redis_url": redis_url})
    note_unknown_variables(settings)
    return settings, open_store(settings, needs_all=needs_all)


def note_unknown_variables(settings: Settings) -> None:
    """Print a line for each variable that looks like a setting and is none."""
    for variable in unknown_variables(settings, os.environ):
        note(f"tracejudge: {variable}")


def open_store(settings: Settings, *, needs_all: bool = False) -> "Store":
    """Connect to Redis; return the first partition, which knows the others. The error names an address.

    With ``needs_all`` one of several that does not answer is an error; else it is named, and the others are used.
    """
    from worker.core.storage.client import StoreError, find_wrong_count, make_stores  # noqa: PLC0415 - not every command

    stores = make_stores(settings.redis_url, settings.prefix, settings.partition_count)
    if settings.redis_url.startswith("rediss"):
        # A Redis without TLS takes the handshake for the beginning of a command, and a worker waits longer for it.
        _explain_absence(settings, stores[0])
    if len(stores) > 1 and (context := click.get_current_context(silent=True)) is not None:
        for store in stores:
            context.call_on_close(store.close)
    for store in stores:
        try:
            # For partitions but the first, which do not have the key, this only asks whether they answer.
            wrong = store.call(lambda client: find_wrong_count(client, store))  # noqa: B023
            if wrong is not None:
                raise SettingsError(f"{place_of('partitions', os.environ, config_file())}: partitions: {wrong}")
        except StoreError as error:
            text = f"{error}: {error.address}"
            if store is stores[0] or needs_all:
                _explain_absence(settings, store)
                raise StoreError(text) from error
            note(f"partition {store.partition}: {text}; what it holds is missing here")
            store.is_away = True
    return stores[0]


def _explain_absence(settings: Settings, store: "Store") -> None:
    """Raise ``StoreError`` with the cause and its fix, as the doctor finds them, if Redis cannot be used."""
    from worker.base.doctor.redis_server import reach  # noqa: PLC0415 - only after an error, but for TLS
    from worker.core.storage.client import StoreError  # noqa: PLC0415 - not every command

    finding = reach("redis", settings.redis_url, store.keys.layout)
    if finding.result == "broken":
        raise StoreError(f"{finding.what}; {finding.fix} ({redis_place(config_file())})")


def config_file() -> str | None:
    """Return the configuration file of the running command, None if there is none."""
    context = click.get_current_context(silent=True)
    return config_path(os.environ, None if context is None else context.params.get("config"))


def moments(store: "Store", **times: str | None) -> dict[str, int | None]:
    """Parse times by the clock of Redis, which dates entries: option name to milliseconds since the epoch."""
    now_s = store.now_ms() / 1000
    return {
        name: None if text is None else int(option_time(f"--{name.replace('_', '-')}", text, now_s) * 1000)
        for name, text in times.items()
    }


def option_time(option: str, text: str, now_s: float) -> float:
    """Parse the time of an option, or raise UsageError."""
    try:
        return parse_time(text, now_s)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from error


def parse_time(text: str, now_s: float) -> float:
    """Parse a time before now, as `90s`, `15m`, `24h` or `7d`, or ISO 8601, which is UTC unless it names a zone.

    Times are in seconds since the epoch. The text of the ``ValueError`` that it raises says what to write.
    """
    duration = _DURATION.fullmatch(text.strip().lower())
    if duration is not None:
        return now_s - float(duration[1]) * _SECONDS[duration[2]]
    try:
        time = dt.datetime.fromisoformat(text.strip())
        return (time if time.tzinfo else time.replace(tzinfo=dt.UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        if (number := text.strip()).isdecimal():
            raise ValueError(f"write {number}s, {number}m or {number}h") from error
        raise ValueError("write 90s, 15m or 24h, or a time as 2026-05-01T12:00:00Z") from error


def output_file(path: str | None) -> "AbstractContextManager[TextIO]":
    """Open the file of `--output`, readable by its owner only; standard output without one."""
    if path is None:
        return nullcontext(sys.stdout)
    if path.lower().endswith((".csv", ".tsv", ".parquet", ".xlsx")):
        raise click.UsageError(f"--output: {path}: what is written is a JSON object a line; name it .jsonl")
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--output: {path}: {error.strerror}") from error


def with_retries(action: Callable[[], T], error: type[Exception], tries: int) -> T:
    """Repeat an action while it raises ``error``, with growing pauses; the last error is raised."""
    for failures in range(tries - 1):
        try:
            return action()
        except error:
            time.sleep(backoff_s(failures, 0.05, 5.0, 0.0))
    return action()


def chosen_metric(judge: Judge, name: str | None) -> Metric:
    """Choose the named metric, or else the first with a pass rule, or else the first."""
    if name is not None and name not in judge.metric_names:
        raise click.UsageError(f"{judge.name} has no metric {name!r}; its metrics are {', '.join(judge.metric_names)}")
    if name is not None:
        return judge.metrics[judge.metric_names.index(name)]
    return next((metric for metric in judge.metrics if metric.pass_rule is not None), judge.metrics[0])


def judges_named(settings: Settings, *names: str) -> tuple[Judge, ...]:
    """Return judges as they are configured, each once."""
    judges = load_judges(settings.judges)
    for name in names:
        if name not in judges:
            raise click.UsageError(f"there is no judge {name!r}{nearest(name, judges)}")
    return tuple(judges[name] for name in dict.fromkeys(names))


def offline_judges(
    config: str | None, *names: str, models: Sequence[str] | None = None
) -> tuple[Settings, tuple[Judge, ...]]:
    """Load the settings and the given judges, each a name or a file, which may replace a judge of the configuration.

    A name is a file if it ends in `.toml`, or if it is no judge and a file of this name exists. No model need be called
    default. ``models`` are the names of `--model`; if it is empty, the models that the judges name must exist.
    """
    settings = load(os.environ, config, needs_rules=False)
    note_unknown_variables(settings)

    def is_file(name: str) -> bool:
        try:
            return name.endswith(".toml") or (name not in load_judges(settings.judges) and Path(name).is_file())
        except (OSError, ValueError):
            # A name that no file can have, or a folder without permission.
            return False

    files = {name: read_judge(Path(name)) for name in names if is_file(name)}
    absent = {name for name in names if name not in files and name not in load_judges(settings.judges)}
    if paths := sorted(path for path in Path("judges.d").glob("*.toml") if path.stem in absent):
        raise click.UsageError(f"there is no judge {paths[0].stem!r}; give its file {paths[0]}, or set judges_folder")
    with_files = msgspec.structs.replace(
        settings, judges={**settings.judges, **first_raised(check_tables(files.values()))}
    )
    judges = judges_named(with_files, *(files[name].name if name in files else name for name in names))
    places = {table.name: table.place.describe("model") for table in files.values()}
    for judge in judges if models == () else ():
        if judge.model is not None and judge.model not in settings.models:
            file = find_file(Path(settings.judges_folder), judge.name) if settings.judges_folder else None
            place = places.get(judge.name, f"judges.{judge.name}.model" if file is None else f"{display(file)}: model")
            raise SettingsError(f"{place}: there is no [models.{judge.model}]{nearest(judge.model, settings.models)}")
    return with_files, judges
