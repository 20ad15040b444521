"""`tracejudge plan`: what judging costs in a day, before the rules are changed."""

import click
from msgspec import structs
from rich.table import Table

from judges.custom.definition import nearest
from judges.registry import configured
from worker.base.commands.options import JSON, OUT, REDIS, connect, note, print_json, print_table
from worker.base.monitor.series import DAY_S
from worker.base.replay.replay import parse_time
from worker.core.config.graders import Graders
from worker.core.config.settings import Settings
from worker.core.selection.sampling import Sampler
from worker.features.report.workload import Estimate, Estimator, NoTrafficError, day_of, read_history


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
@REDIS
@JSON
def command(
    *,
    since: str | None,
    rates: tuple[float, ...],
    models: tuple[str, ...],
    cascades: tuple[str, ...],
    config: str | None,
    redis_url: str | None,
    as_json: bool,
) -> None:
    """Estimate what a day of judging takes: judgements, tokens, cost, calls a second, and the width of intervals.

    The rules are applied to a sample of the retained traces, and scaled to the traces of yesterday. Each --rate,
    --model and --cascade is an alternative of its own.
    """
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
    estimates = [_estimate(estimator, name, alternative, traces) for name, alternative in alternatives.items()]
    if as_json:
        print_json({"traces": traces, "source": source, "alternatives": estimates})
        return
    note(f"{traces:,.0f} {source}; estimated from {estimates[0].sampled:,} of them")
    for estimate in estimates:
        print_table(OUT, work_table(estimate, "a day"))
        for text in estimate.notes:
            note(text)


def _alternatives(
    settings: Settings, rates: tuple[float, ...], models: tuple[str, ...], cascades: tuple[str, ...]
) -> dict[str, Settings]:
    alternatives = {"as configured": settings}
    for rate in rates:
        rules = tuple(structs.replace(rule, rate=rate) for rule in settings.rules)
        alternatives[f"rate {rate:g}"] = structs.replace(settings, rules=rules)
    named = [("model", name, settings.models) for name in models]
    for kind, name, tables in [*named, *(("cascade", name, settings.cascades) for name in cascades)]:
        if name not in tables:
            raise click.UsageError(f"--{kind}: there is no [{kind}s.{name}]{nearest(name, tables)}")
        rules = tuple(structs.replace(rule, model=name, combine=None) for rule in settings.rules)
        alternatives[f"{kind} {name}"] = structs.replace(settings, rules=rules)
    return alternatives


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
