"""A cascade whose second model was away and refuses bad answers: everything says the same, and the truth is inside."""

import itertools
import time

import msgspec
import pytest
from support.decision_endpoint import DecisionEndpoint
from support.pipeline import make_traces
from support.processes import bounded_s, wait_until
from support.replies import failing
from traffic import reads, remark
from whole_picture import JUDGE_MODEL, Picture

from judges.agreement.cascade import CascadeSums
from worker.base.monitor.feature import MonitorKeys
from worker.base.monitor.series import HOUR_S, read_series, utc_days
from worker.features.board.quality import read_rows
from worker.features.board.series_page import read_cascades
from worker.features.cascades.shares import SUMS_KIND, read_shares
from worker.features.report.figures import Period, Scope, make_report
from worker.features.report.sources import read_redis

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow("a whole deployment with Prometheus, at 75 times its pace")]
TRACES = 300
TRUTH = 0.5


def answer(number: int) -> str:
    """Every second answer is bad, and every third of these is refused by the second model."""
    return f"Parcel {number}. {'' if number % 2 else remark('safety', 'bad' if number % 6 else 'refusal')}"


def sums(picture: Picture) -> CascadeSums:
    """Return the sums of the cascade as the monitor shows them when its hours have ended an hour ago."""
    shares = read_shares(picture.pipeline.store, time.time() + 2 * HOUR_S)
    return shares[0].sums if shares else CascadeSums()


def move_two_hours_back(picture: Picture) -> None:
    """Move the cascade's hours into the past, so that they have ended."""
    store, now = picture.pipeline.store, time.time()
    for day in utc_days(now - HOUR_S, now):
        name = MonitorKeys(store.keys.prefix).quality_counts(SUMS_KIND, day)
        fields = store.call(lambda client, name=name: client.hgetall(name))
        moved = {}
        for field, amount in fields.items():
            hour, *labels = msgspec.json.decode(field)
            moved[msgspec.json.encode([str(int(hour) - 2), *labels])] = amount
        if moved:
            store.pipeline(lambda pipe, name=name, moved=moved: [pipe.delete(name), pipe.hset(name, mapping=moved)])


def test_report_metrics_board_and_alert_say_the_same(picture: Picture) -> None:
    pipeline, numbers = picture.pipeline, itertools.count()
    traces = [msgspec.structs.replace(trace, output=answer(next(numbers))) for trace in make_traces(TRACES)]
    with DecisionEndpoint() as endpoint:
        endpoint.answer = lambda _: [next(numbers) % 97 / 97]
        models = {
            "cheap": {"provider": "decisions", "base_url": endpoint.base_url, "model": "cheap"},
            "strong": {"provider": "openai", "base_url": picture.endpoint.base_url, "model": JUDGE_MODEL},
        }
        settings = {
            "models": models,
            "cascades": {"both": {"first": "cheap", "then": "strong", "rate": 0.6}},
            "rules": [{"name": "all", "judges": ["safety"], "model": "both"}],
        }
        former = picture.worker(**settings)
        picture.endpoint.behaviour = failing(503)
        pipeline.publish(traces[: TRACES // 3])
        wait_until(lambda: sums(picture).first == TRACES // 3, bounded_s(60), "first verdicts")
        assert sums(picture).waiting == sums(picture).chosen > TRACES // 10, "the second model is away"
        picture.endpoint.behaviour = reads
        pipeline.publish(traces[TRACES // 3 :])
        pipeline.settled(TRACES)
        wait_until(lambda: sums(picture).first == TRACES and not sums(picture).waiting, bounded_s(120), "second ones")
        former.program.terminate()
        move_two_hours_back(picture)
        worker = picture.watch(**settings)
        of_cascade = {"judge_model": "both", "service": "bot"}
        gauge = "tracejudge_quality_unknown_ratio"
        wait_until(lambda: worker.scrape().samples(gauge, **of_cascade), bounded_s(60), "the gauges of the cascade")

        def heard() -> list[str]:
            alerts = [each for each in picture.heard() if each.labels.get("judge_model") == "both"]
            return [each.annotations["description"] for each in alerts if each.name == "TraceJudgeUnscoredShareHigh"]

        text = picture.wait_until(heard, "the alert on unscored verdicts")[0]
    scrape, now = worker.scrape(), time.time()
    asked = Scope.from_options(Period(now - 4 * HOUR_S, now), None, ("service",), None, (), now)
    (row,) = make_report(asked, read_redis(pipeline.store, asked, now)).cascades
    assert row.share is not None
    names = "unknown_ratio", "lowest", "highest"
    shown = [scrape.value(f"tracejudge_quality_{name}", **of_cascade) for name in names]
    assert shown == [row.share.unknown, row.share.lowest, row.share.highest]
    assert not scrape.samples("tracejudge_quality_corrected_share", **of_cascade), "more than a tenth is not known"
    assert row.text.count(f"not known, {row.share.lowest:.1%} to {row.share.highest:.1%}") == 1
    series = next(each for each in read_series(pipeline.store).values() if each.judge_model != JUDGE_MODEL)
    (panel,) = [each for each in read_rows(pipeline.store, "24h", now) if each.series == series]
    assert read_cascades(pipeline.store, panel, now) == [row.text]
    assert (
        f"{100 * row.share.lowest:.4g}% would pass at least, and if all passed, {100 * row.share.highest:.4g}%" in text
    )
    refused = worker.scrape().value("tracejudge_cascade_second_verdicts", state="refused", **of_cascade)
    assert refused == sum(entry.verdict.reason == "refusal" for entry in pipeline.outbox()) > TRACES // 20
    assert row.share.lowest < TRUTH < row.share.highest
