"""`tracejudge plan`: what judging costs in a day, before the rules are changed, and what a volume of traces needs."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import click
from msgspec import structs
from rich.table import Table

from judges.registry import configured
from tracejudge.sharding import MAX_SHARDS
from worker.cli.options import JSON, OUT, REDIS, amount, connect, note, options, print_json, print_table
from worker.config.errors import nearest
from worker.config.graders import Graders
from worker.config.settings import Settings
from worker.monitor.series import DAY_S
from worker.replay import parse_time
from worker.report.capacity import MONITOR, Capacity, Volume, capacity_of
from worker.report.workload import Estimate, Estimator, NoTrafficError, day_of, read_history
from worker.selection.sampling import Sampler

_PRESENT: Final = "as configured"
_POSITIVE: Final = click.FloatRange(0, min_open=True)
_UNITS: Final[tuple[tuple[int, str], ...]] = ((3600, "h"), (60, "min"), (1, "s"))
# Names are fields of `Volume`; without a value its default holds.
_VOLUME: Final = options(
    click.option("--capacity", is_flag=True, help="Compute workers, cores, memory, cost of a volume, without Redis."),
    click.option("--traces-per-second", type=_POSITIVE, metavar="N", help="Published traces in the busiest hour."),
    click.option("--judges", type=click.IntRange(1), metavar="N", help="Judges times models of a judged trace.  [1]"),
    click.option("--seconds-per-call", type=_POSITIVE, metavar="N", help="Until the judge model has answered.  [2]"),
    click.option("--tokens", type=(int, int), metavar="IN OUT", help="Tokens of a call.  [1500 150]"),
    click.option("--price", type=(float, float), metavar="IN OUT", help="USD for a million tokens."),
    click.option("--trace-bytes", type=click.IntRange(1), metavar="N", help="Bytes of a trace as JSON.  [4000]"),
    click.option("--retention", metavar="TIME", help="How long traces stay in the stream.  [24h]"),
    click.option("--gateway-spans", type=_POSITIVE, metavar="N", help="Spans of a trace through the gateway.  [none]"),
    click.option("--redis-gb", type=click.FloatRange(2), metavar="N", help="Most memory of one Redis.  [32]"),
)


@click.command("plan")
@click.option("--since", metavar="TIME", help="Begin of the traces to plan from: 6h ago, or a time.  [24h]")
@click.option(
    "--rate",
    "rates",
    multiple=True,
    type=click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
    help="Plan all rules with this rate too; repeatable.",
)
@click.option(
    "--model", "models", multiple=True, metavar="NAME", help="Plan all rules with this [models.NAME] too; repeatable."
)
@click.option(
    "--cascade",
    "cascades",
    multiple=True,
    metavar="NAME",
    help="Plan all rules with this [cascades.NAME] too; repeatable.",
)
@_VOLUME
@REDIS
@JSON
def command(
    *,
    capacity: bool,
    since: str | None,
    rates: tuple[float, ...],
    models: tuple[str, ...],
    cascades: tuple[str, ...],
    config: str | None,
    redis_url: str | None,
    as_json: bool,
    **volume: Any,
) -> None:
    """Estimate what a day of judging takes: judgements, tokens, cost, calls a second, and the width of intervals.

    The rules are applied to a sample of the retained traces, and scaled to the traces of yesterday. Each --rate,
    --model and --cascade is an alternative of its own.

    With --capacity nothing is read: the options describe a volume, with each --rate as an alternative, and the answer
    follows from figures that were measured (docs/sizing.md).
    """
    given = {name: value for name, value in volume.items() if value is not None}
    if capacity:
        if since or models or cascades or "traces_per_second" not in given:
            raise click.UsageError("--capacity needs --traces-per-second, and has no --since, --model or --cascade")
        _print_capacity(given, rates or (1.0,), as_json=as_json)
        return
    if given:
        raise click.UsageError(f"--{next(iter(given)).replace('_', '-')} goes with --capacity")
    settings, store = connect(config, redis_url)
    try:
        now_s = store.now_ms() / 1000
        try:
            since_s = parse_time(since or "24h", now_s)
        except ValueError as error:
            raise click.UsageError(f"--since: {error}") from error
        alternatives = _alternatives(settings, rates, models, cascades)
        history = read_history(settings, store, since_s, now_s)
        traces, source = day_of(store, history, now_s, is_given=since is not None)
    except NoTrafficError as error:
        raise click.ClickException(str(error)) from error
    finally:
        store.close()
    estimator = Estimator(settings, history)
    found = [_estimate(estimator, name, one, traces) for name, one in alternatives.items()]
    if as_json:
        print_json({"traces": traces, "source": source, "alternatives": found})
        return
    note(f"{traces:,.0f} {source}; estimated from {found[0].sampled:,} of them")
    for estimate in found:
        print_table(OUT, work_table(estimate, "a day"))
        for text in estimate.notes:
            note(text)


def _print_capacity(given: dict[str, Any], rates: Sequence[float], *, as_json: bool) -> None:
    try:
        if "retention" in given:
            given["retention_s"] = -parse_time(given.pop("retention"), 0.0)
    except ValueError as error:
        raise click.UsageError(f"--retention: {error}") from error
    if given.get("retention_s", 1.0) <= 0:
        raise click.UsageError("--retention: write how long traces are kept, as 90, 15m or 24h")
    volumes = [Volume(**given, rate=rate) for rate in rates]
    found = [(volume, capacity_of(volume)) for volume in volumes]
    if as_json:
        print_json([{"volume": volume, "capacity": needed} for volume, needed in found])
        return
    print("\n\n".join("\n".join(capacity_lines(*each)) for each in found))


def capacity_lines(volume: Volume, needed: Capacity) -> Iterator[str]:
    """Lay out what a volume needs, a line for each part."""
    traces, size = f"{volume.traces_per_second:,.10g}", f"{volume.trace_bytes:,}"
    seconds, unit = next(each for each in _UNITS if volume.retention_s % each[0] == 0 or each[0] == 1)
    kept = f"{volume.retention_s / seconds:,g} {unit}"
    yield f"{traces} traces a second of {size} bytes, kept for {kept}; {100 * volume.rate:.6g} % are judged"

    def line(what: str, needs: str, detail: str) -> str:
        return f"{what:<14}{needs:>18}   {detail}"

    calls = (
        f"{needed.calls_in_flight:,} in flight, {volume.seconds_per_call:g} s each; "
        f"max_in_flight at least {needed.max_in_flight:,}"
    )
    yield line("judge calls", f"{needed.evaluations_per_second:,.10g}/s", calls)
    cores = f"{needed.worker_cores:,.2f} cores used, {needed.worker_memory_gb:,.1f} GB"
    yield line("workers", f"{needed.workers:,} processes", cores)
    if needed.gateways:
        yield line("gateways", f"{needed.gateways:,} processes", f"{needed.gateway_cores:,.2f} cores used")
    cores = f"{needed.redis_cores:,.2f} cores used, {needed.redis_memory_gb:,.1f} GB"
    yield line("Redis", amount(needed.shards, "shard"), cores)
    unit, size_of = ("GiB", 2**30) if needed.shard_max_stream_bytes >= 2**30 else ("MiB", 2**20)
    stream = f"{needed.shard_max_stream_bytes / size_of:,.1f} {unit}"
    most = f"max_stream = {needed.shard_max_stream:,}, max_stream_bytes = {stream}"
    yield line("  each shard", f"{needed.shard_maxmemory_gb:,.1f} GB maxmemory", most)
    yield line("network", f"{needed.network_mb_per_second:,.10g} MB/s", "into Redis, and again to the workers")
    usd = "unknown price" if needed.usd_per_day is None else f"{needed.usd_per_day:,.2f} USD"
    yield line("judge model", usd, f"a day, {volume.tokens[0]:,} tokens in and {volume.tokens[1]:,} out a call")
    if needed.shards > needed.shards_for_cpu:
        fewer = f"a --retention below {kept} or a higher --redis-gb needs fewer"
        yield f"Memory needs more shards than CPU does ({needed.shards_for_cpu:,}): {fewer}."
    divide = "divide the services over several installations"
    if needed.shards > MAX_SHARDS:
        yield f"One installation has at most {MAX_SHARDS} shards: {divide}."
    if needed.evaluations_per_second > MONITOR.value:
        yield f"The monitor of one installation reads about {MONITOR.value:,} verdicts a second: {divide}."


def _alternatives(
    settings: Settings, rates: tuple[float, ...], models: tuple[str, ...], cascades: tuple[str, ...]
) -> dict[str, Settings]:
    found = {_PRESENT: settings}
    for rate in rates:
        rules = tuple(structs.replace(rule, rate=rate) for rule in settings.rules)
        found[f"rate {rate:g}"] = structs.replace(settings, rules=rules)
    named = [("model", name, settings.models) for name in models]
    for kind, name, known in [*named, *(("cascade", name, settings.cascades) for name in cascades)]:
        if name not in known:
            raise click.UsageError(f"--{kind}: there is no [{kind}s.{name}]{nearest(name, known)}")
        rules = tuple(structs.replace(rule, model=name, combine=None) for rule in settings.rules)
        found[f"{kind} {name}"] = structs.replace(settings, rules=rules)
    return found


def _estimate(estimator: Estimator, name: str, settings: Settings, traces: float) -> Estimate:
    graders = Graders(settings, configured(settings.judges))
    sampler = Sampler(settings, graders)
    for rule in settings.rules:
        for judge in rule.judges:
            # As judging does: a judge with a model of its own has no second judgings.
            alone = judge in graders.own or judge in graders.code
            second = [settings.cascades[one].then for one in rule.models if one in settings.cascades and not alone]
            for model in (*graders.of(rule, judge), *second):
                if graders.judge(judge, graders.named(model).judge_model) is None:
                    raise click.UsageError(f"{model!r} cannot be asked for {judge}: name a model that writes text")
    return estimator.estimate(
        name, graders, sampler, lambda entry: sampler.probabilities(entry.trace), period_s=DAY_S, traces=traces
    )


def work_table(estimate: Estimate, period: str) -> Table:
    """Lay out an estimate: a row for each service, judge and judge model, and the sum."""
    table = Table(title=f"Expected work {period}, {estimate.name}")
    for column in ("service", "judge", "judge model"):
        table.add_column(column)
    for column in ("judgements", "tokens in", "tokens out", "USD", "± 95 %"):
        table.add_column(column, justify="right")

    def usd(amount: float | None) -> str:
        return "unknown" if amount is None else f"{amount:,.2f}"

    for row in estimate.rows:
        width = "" if row.half_width is None else f"{row.half_width:.1%}"
        counts = (f"{amount:,.0f}" for amount in (row.judgements, row.input_tokens, row.output_tokens))
        table.add_row(row.service, row.judge, row.judge_model, *counts, usd(row.usd), width)
    table.add_section()
    totals = (f"{amount:,.0f}" for amount in (estimate.judgements, estimate.input_tokens, estimate.output_tokens))
    table.add_row("all", "", "", *totals, usd(estimate.usd), "")
    mean, peak = estimate.calls_per_s, estimate.peak_calls_per_s
    table.caption = f"calls a second: {mean:,.3g} on average, {peak:,.3g} in the busiest hour"
    return table
