"""The report, the gauges and the board say the same of one window, to the last digit."""

import random
from typing import Any

from msgspec import structs, to_builtins
from support.report_parts import DAY_S, NOW, publish, verdict
from support.stage_parts import Keyspace, rules_of, settings_of

from judges.agreement import pass_share
from judges.core.model import ModelSettings
from judges.core.verdict import Score, Verdict
from worker.base.lookup.label_store import Label, attach, write_labels
from worker.base.monitor.gauges import MonitorParts
from worker.base.monitor.sums import QualitySums
from worker.core.config.settings import Rule
from worker.core.queue.batch import CascadeStep
from worker.core.telemetry.metrics import Metrics
from worker.features.board.quality import read_rows
from worker.features.board.series_page import read_cascades, read_trust
from worker.features.cascades.feature import Cascade
from worker.features.cascades.watch import CascadeWatch
from worker.features.labels.correction_watch import CorrectionWatch
from worker.features.report.figures import Period, Scope, make_report
from worker.features.report.sources import read_redis

CHEAP = ModelSettings(provider="decisions", base_url="http://localhost", model="cheap")
STRONG = ModelSettings(provider="scripted", model="strong")
SETTINGS: dict[str, Any] = {
    "models": {"default": STRONG, "cheap": CHEAP, "strong": STRONG},
    "cascades": {"both": Cascade("cheap", "strong", rate=0.25)},
    "rules": (Rule(name="all", judges=("safety",), model="both", rate=0.5),),
}


def traffic() -> list[Verdict]:
    """Verdicts of three days: weights, sessions, refusals, and second judgings, some of them refused or away."""
    random_ = random.Random(37)
    verdicts = []
    for number in range(3_000):
        # None in the last hour: the window of the gauges is the day.
        at = NOW - 3 * DAY_S + (3 * DAY_S - 3_700) * number / 3_000
        w, refused = random_.choice((1.0, 2.0, 8.0)), random_.random() < 0.03
        g = random_.choice((0.2, 0.7, 0.97))
        scores = (Score("safety", g, passed=g > 0.5, probability=g),)
        rate, is_chosen = 0.5 if g == 0.7 else 0.25, random_.random() < (0.5 if g == 0.7 else 0.25)
        step = CascadeStep("both", "12345678", rate, is_chosen)
        fields = {"service": "shop", "judge": "safety", "session_id": f"s{number // 3 % 400}", "metrics": ("safety",)}
        first = verdict(
            number,
            at,
            judge_model="cheap",
            outcome="unscored" if refused else "scored",
            reason="content_filter" if refused else None,
            scores=() if refused else scores,
            details={} if refused else {"cascade": to_builtins(step)},
            weight=w,
            probability=1 / w,
            **fields,
        )
        verdicts.append(first)
        hour = int((NOW - at) // 3_600)
        if refused or not is_chosen or hour == 9:
            continue
        of_first = {"first": first.evaluation_id, "judge_model": "cheap", "ended_at": at, "probability": {"safety": g}}
        again = structs.replace(step, **of_first)
        passed, is_refused = random_.random() < g, random_.random() < 0.02
        verdicts.append(
            verdict(
                number + 10_000,
                at + 1,
                judge_model="strong",
                outcome="unscored" if is_refused else "scored",
                reason="refusal" if is_refused else None,
                scores=() if is_refused else (Score("safety", float(passed), passed=passed),),
                details={"cascade": to_builtins(again)},
                weight=w / rate,
                probability=rate / w,
                **fields,
            )
        )
    return verdicts


def label_some(keyspace: Keyspace, verdicts: list[Verdict]) -> None:
    """Label an eighth of the first verdicts of the last day."""
    recent = [each for each in verdicts if each.started_at > NOW - DAY_S]
    drawn = [each for each in recent if each.judge_model == "cheap" and each.outcome == "scored"][::8]
    passes = (number % 5 > 0 for number in range(len(drawn)))
    labels = [Label(each.trace_id, "safety", "safety", passed=next(passes), drawn=0.125) for each in drawn]
    write_labels(keyspace.store, labels)
    attach(keyspace.store, drawn)


def test_report_gauges_and_board_agree_to_the_last_digit(keyspace: Keyspace) -> None:
    verdicts = traffic()
    publish(keyspace, verdicts)
    label_some(keyspace, verdicts)
    settings = settings_of(keyspace, **SETTINGS)
    metrics = Metrics(settings)
    parts = MonitorParts(settings, keyspace.store, metrics, rules_of(settings))
    watches = (QualitySums(settings, keyspace.store, metrics, rules_of(settings)).tasks[0],)
    watches[0]._clock = watches[0]._detection._clock = lambda: NOW  # type: ignore[attr-defined]
    for watch in (*watches, CascadeWatch(parts, lambda: NOW), CorrectionWatch(parts, lambda: NOW)):
        while watch.run(NOW):
            pass

    def gauge(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(
            f"tracejudge_quality_{name}",
            {
                "service": "shop",
                "environment": "",
                "judge": "safety",
                "metric": "safety",
                "segment": "",
                **labels,
            },
        )

    window = Period(NOW - DAY_S, NOW)
    asked = Scope.from_options(window, None, ("service", "judge_model", "version"), None, (), NOW)
    report = make_report(asked, read_redis(keyspace.store, asked, NOW))
    rows = {row.series.judge_model: row for row in read_rows(keyspace.store, "24h", NOW)}
    assert {row.labels["judge_model"] for row in report.rows} == set(rows) == {"cheap", "strong"}
    for row in report.rows:
        model, version = row.labels["judge_model"], row.labels["version"]
        of_board = rows[model].now
        assert row.share is not None
        assert of_board is not None
        names = ("share", "lower", "upper", "effective_n", "unknown_ratio", "lowest", "highest")
        shown = [gauge(name, judge_model=model, version=version) for name in names]
        own = [row.share.value, row.share.low, row.share.high, row.effective_n, row.unknown, row.lowest, row.highest]
        has_range = row.unknown > 0.02
        board = [*of_board[:3], of_board.effective, of_board.unknown]
        board += [of_board.lowest, of_board.highest] if has_range else [None, None]
        assert shown == own == board, model
        # Each own session, as the share does not depend on them.
        inside = [each for each in verdicts if each.judge_model == model and each.started_at + 0.5 >= window.since]
        passed = [each.scores[0].passed if each.scores else None for each in inside]
        of_arrays = pass_share(passed, weight=[each.weight for each in inside])
        assert of_arrays is not None
        assert (of_arrays.share, of_arrays.unknown) == (row.share.value, row.unknown)
    version = report.rows[0].labels["version"]
    corrected = [share for row in report.rows for share in row.corrected]
    assert len(corrected) == 1
    _, of_trust = read_trust(keyspace.store, rows["cheap"])
    names = ("corrected_share", "corrected_lower", "corrected_upper")
    shown = [gauge(name, judge_model="cheap", version=version, method="ppi") for name in names]
    assert shown == [*structs.astuple(corrected[0].share)]
    assert of_trust[0].corrected is not None
    (cascade,) = report.cascades
    assert cascade.share is not None
    shown = [gauge(name, judge_model="both", version="12345678", method="cascade") for name in names]
    shown += [gauge(name, judge_model="both", version="12345678") for name in ("unknown_ratio", "lowest", "highest")]
    assert shown == list(cascade.share[:6])
    assert 0.02 < cascade.share.unknown < 0.1
    assert read_cascades(keyspace.store, rows["cheap"], NOW) == [cascade.text]
