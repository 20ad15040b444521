"""`tracejudge report`: pass shares of a period with their intervals, coverage and cost."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from judges.core.faults import install_command
from judges.custom.definition import nearest
from worker.base.commands.options import OUT, REDIS, connect, option_time, parse_time
from worker.base.monitor.feature import Segment
from worker.features.report.archive import AbsentArchiveError, ArchiveError
from worker.features.report.figures import (
    SEGMENT_KEYS,
    SERIES_KEYS,
    Period,
    Report,
    Scope,
    encode,
    make_report,
    time_of,
    written,
)
from worker.features.report.sources import describe_absence, read_archives, read_redis
from worker.features.report.text import as_markdown, as_text

_KEYS: Final = (*SERIES_KEYS, *SEGMENT_KEYS)


def _as_html(report: Report) -> str:
    try:
        from worker.features.report.html import as_html  # noqa: PLC0415 - its package is optional
    except ModuleNotFoundError as error:
        fix = install_command("board")
        raise click.ClickException(f"--format html needs the package {error.name}: {fix}") from error
    return as_html(report)


_FORMATS: Final[Mapping[str, Callable[[Report], str]]] = {
    "text": as_text,
    "markdown": as_markdown,
    "html": _as_html,
    "json": lambda report: encode(report) + "\n",
}


@click.command("report")
@click.option(
    "--since",
    metavar="TIME",
    default="7d",
    show_default=True,
    help="Start: 90s, 15m, 24h or 7d ago, or a time such as 2026-05-01.",
)
@click.option("--until", metavar="TIME", help="End; now unless given.")
@click.option(
    "--by",
    metavar="KEYS",
    default="service,environment,judge",
    show_default=True,
    help=f"One row for each value of these keys: {', '.join(_KEYS)}, tags.NAME.",
)
@click.option("--compare", metavar="SPAN", help="Compare with the period that lies this much earlier, such as 7d.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(tuple(_FORMATS)),
    default="text",
    show_default=True,
    help="Form of the report.",
)
@click.option("--json", "format_", flag_value="json", default="text", help="The same as --format json.")
@click.option(
    "--archive",
    "archives",
    metavar="FILE",
    multiple=True,
    help="Read verdicts from this file in place of Redis: JSON lines, also gzip; repeatable.",
)
@click.option("--service", metavar="PATTERN", help="Only these services, such as support-*.")
@click.option("--judge", "judges", metavar="NAME", multiple=True, help="Only this judge; repeatable.")
@click.option("--output", metavar="FILE", help="Write to this file in place of standard output.")
@REDIS
def command(
    *,
    since: str,
    until: str | None,
    by: str,
    compare: str | None,
    format_: str,
    archives: tuple[str, ...],
    service: str | None,
    judges: tuple[str, ...],
    output: str | None,
    config: str | None,
    redis_url: str | None,
) -> None:
    """Print pass shares with 95 % intervals, coverage, cost, and what the figures cannot say.

    A row is one metric of one judge; its share is weighted by 1 / sampling probability and counts live traffic only.
    Shares come from the sums that the monitor keeps for 90 days, else from the outbox; --archive reads files instead.

    \b
    Examples:
      tracejudge report --since 7d --compare 7d
      tracejudge report --since 24h --by service,judge,release --format markdown
      tracejudge report --since 2026-05-01 --archive verdicts.jsonl.gz
      tracejudge report --since 30d --format html --output report.html

    Exit code 0 on success, 1 if the period has no verdicts, Redis does not answer or an archive is damaged, 2 on wrong
    usage, such as a file that cannot be opened.
    """  # noqa: D301 - click's mark for lines that stay as they are
    keys = [key.strip() for key in by.split(",") if key.strip()]
    for key in keys:
        if key not in _KEYS:
            try:
                msgspec.convert(key, Segment)
            except msgspec.ValidationError as error:
                hint = nearest(key, (*_KEYS, "tags.NAME"))
                raise click.UsageError(f"--by: there is no key {key!r}{hint}") from error
    if archives:
        scope = _scope(time.time(), since, until, compare, keys, service, judges)
        try:
            evidence = read_archives(archives, scope)
        except AbsentArchiveError as error:
            raise click.UsageError(f"--archive: {error}") from error
        except ArchiveError as error:
            raise click.ClickException(str(error)) from error
    else:
        _, store = connect(config, redis_url)
        try:
            # By Redis' clock, which made the times of the buckets.
            now = store.now_ms() / 1000
            scope = _scope(now, since, until, compare, keys, service, judges)
            evidence = read_redis(store, scope, now)
        finally:
            store.close()
    report = make_report(scope, evidence)
    if not any(row.verdicts for row in report.rows):
        span = f"{written(time_of(scope.period.since))} and {written(report.until)} UTC"
        asked = [f" --service {scope.service}"] if scope.service else []
        only = "".join((*asked, *(f" --judge {judge}" for judge in scope.judges)))
        of = f" for{only}" if only else ""
        absence = describe_absence(scope, evidence.newest)
        reasons = [absence] if absence else [limit.text for limit in evidence.limits]
        why = "; ".join((f"no judgements between {span}{of} in {evidence.sources.shares}", *reasons))
        raise click.ClickException(why)
    if output is None:
        text = as_text(report, colour=OUT.is_terminal) if format_ == "text" else _FORMATS[format_](report)
        print(text, end="", flush=True)
        return
    try:
        Path(output).write_text(_FORMATS[format_](report), encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--output: {output}: {error.strerror}") from error


def _scope(  # noqa: PLR0917 - the options of the command
    now: float,
    since: str,
    until: str | None,
    compare: str | None,
    by: Sequence[str],
    service: str | None,
    judges: Sequence[str],
) -> Scope:
    """Parse the times. Raises click.UsageError: One of them cannot be parsed, or they exclude each other."""
    end = now if until is None else min(now, option_time("--until", until, now))
    period = Period(option_time("--since", since, now), end)
    if period.since >= period.until:
        raise click.UsageError(f"--since: must be before {'now' if until is None else '--until'}")
    shift_s = None
    if compare is not None:
        try:
            # A span before 0 is negative; a time of the calendar is not, and is refused below.
            shift_s = -parse_time(compare, 0.0)
        except ValueError:
            shift_s = 0.0
        if shift_s < period.until - period.since:
            raise click.UsageError(
                "--compare: write a span such as 7d that is at least as long as the period, so that both share no "
                "judgement"
            )
    return Scope.from_options(period, shift_s, by, service, judges, now)
