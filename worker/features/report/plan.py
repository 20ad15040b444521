"""`tracejudge plan`: what judging costs in a day, before the rules are changed."""

import click
from msgspec import structs

from judges.custom.definition import nearest
from judges.registry import load_judges
from tracejudge import Trace
from worker.base.commands.options import JSON, OUT, REDIS, connect, note, option_time, print_json, print_table
from worker.base.monitor.series import DAY_S
from worker.base.replay.replay import Chooser
from worker.core.config.graders import Graders, JudgeGrader
from worker.core.config.settings import COMBINE, Settings
from worker.core.selection.sampling import Choice, Rules, Sampling, choose_either, is_always, is_by_session
from worker.core.selection.stream_entry import TraceEntry
from worker.core.storage.client import Store
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
        since_s = option_time("--since", since or "24h", now_s)
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
        print_table(OUT, estimate.table("a day"))
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
    for kind, name, tables in [*named, *(("cascade", name, settings.aliases) for name in cascades)]:
        if name not in tables:
            raise click.UsageError(f"--{kind}: there is no [{kind}s.{name}]{nearest(name, tables)}")
        rules = tuple(COMBINE.with_value(structs.replace(rule, model=name), None) for rule in settings.rules)
        alternatives[f"{kind} {name}"] = structs.replace(settings, rules=rules)
    return alternatives


def _estimate(estimator: Estimator, name: str, settings: Settings, traces: float) -> Estimate:
    graders = Graders(settings, load_judges(settings.judges))
    rules = Rules(settings, graders)
    for rule in settings.rules:
        for judge in rule.judges:
            # As judging does: a judge with a model of its own has no second judgings.
            alone = judge in graders.model_by_judge or judge in graders.code_judges
            second = [model for name in rule.models if not alone for model in settings.aliases.get(name, ())[1:]]
            for model in (*graders.grader_names(rule, judge), *second):
                if graders.judge_form(judge, graders.grader(model).judge_model) is None:
                    raise click.UsageError(f"{model!r} cannot be asked for {judge}: name a model that writes text")
    return estimator.estimate(
        name, rules, lambda entry: probabilities(rules, entry.trace), period_s=DAY_S, traces=traces
    )


def probabilities(rules: Rules, trace: Trace) -> Sampling:
    """Return every evaluation that the rules may choose, with its probability; nothing is drawn or counted.

    Traces that are chosen for a new value are left out: which traces these are depends on all others of their hour.
    """
    best: dict[JudgeGrader, float] = {}
    by_session: dict[JudgeGrader, float] = {}
    gathered: dict[JudgeGrader, float] = {}
    for rule, evaluations in rules.matching(trace).rules:
        probability = 1.0 if rule.always and is_always(rule, trace) else rule.rate
        highest = gathered if rule.unit == "session" else by_session if is_by_session(rule) else best
        for evaluation in evaluations if probability else ():
            highest[evaluation] = max(highest.get(evaluation, 0.0), probability)
    # Below all positions, and different if those of the trace and of its session are independent.
    choices = choose_either(best, by_session, -1.0, -2.0 if trace.session_id else -1.0)
    return Sampling(tuple(choices), (), tuple(Choice(*names, probability) for names, probability in gathered.items()))


def expected_work(
    settings: Settings, store: Store, name: str, chooser: Chooser, span_s: tuple[float, float]
) -> Estimate | None:
    """Estimate the work of a replay between two times in seconds since the epoch; None if no trace of then is left."""
    try:
        history = read_history(settings, store, *span_s)
    except NoTrafficError:
        return None

    def choose(entry: TraceEntry) -> Sampling:
        selected = chooser.choose(entry)
        # What is drawn is certain: a replay draws the same traces again.
        drawn = [Choice(draw.evaluation.judge, draw.grader.name, 1.0) for draw in selected.evaluations]
        session_choices = [choice._replace(probability=1.0) for choice in selected.session_choices]
        return Sampling(tuple(drawn), (), tuple(session_choices))

    return Estimator(settings, history).estimate(f"replay {name}", chooser.rules, choose, period_s=history.span_s)
