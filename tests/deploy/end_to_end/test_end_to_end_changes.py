"""A judge changes and its scores with it: that is told as what it is, and no fall of the service."""

from collections.abc import Mapping

import pytest
from busy_services import ENVIRONMENT, BusyServices
from alert_scenes import RUNBOOKS
from scaled_prometheus import PACE
from whole_picture import JUDGE_MODEL, Picture

from judges.registry import catalogue

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow("a whole deployment with Prometheus, at 75 times its pace")]
SERVICE, JUDGE = "support-bot", "faithfulness"
CHANGED = "TraceJudgeJudgeChanged"
STRICTER = {"pass_at": 5}


def test_a_judge_that_gets_stricter_is_told_and_no_fall(picture: Picture) -> None:
    """The pass mark is raised by a rolling restart; the answers are what they were, and now all of them fail."""
    before, after = (version(settings) for settings in ({}, STRICTER))
    former = picture.watch(JUDGE)
    with BusyServices(picture.pipeline, SERVICE):
        picture.wait_for(f'tracejudge:evaluations:1h{{version="{before}"}} offset {PACE("1h")} > 30')
        latter = picture.worker(JUDGE, judges={JUDGE: STRICTER})
        picture.prometheus.watch(former, latter)
        picture.prometheus.watch(latter)
        assert former.program.terminate() == 0
        told = picture.hear(CHANGED, "firing", SERVICE)
        # The monitor looks once a minute, and knows both versions for an hour.
        for of, share in ((before, 1), (after, 0)):
            picture.wait_for(f'tracejudge_quality_share{{version="{of}", segment=""}} == {share}')

    assert picture.fired(SERVICE) == {CHANGED}
    # It may be over already: an hour after the first verdict of the new version, which is a moment on a busy machine.
    heard = [alert.about for alert in picture.heard()]
    assert heard[:1] == [(CHANGED, "firing", SERVICE)]
    assert heard[1:] in ([], [(CHANGED, "resolved", SERVICE)])
    assert told.labels == {
        "alertname": CHANGED,
        "severity": "info",
        "kind": "info",
        "component": "tracejudge",
        "service": SERVICE,
        "environment": ENVIRONMENT,
        "judge": JUDGE,
        "version": after,
        "judge_model": JUDGE_MODEL,
    }
    variables = f"var-service={SERVICE}&var-environment={ENVIRONMENT}&var-judge={JUDGE}"
    assert told.annotations == {
        "summary": f"{JUDGE} judges {SERVICE} in version {after} by {JUDGE_MODEL} now",
        "description": f"Its first verdicts came within the last {PACE('1h')}. It was version {before} by "
        f"{JUDGE_MODEL}. A step in its graphs at this moment comes from the judge, not from the service; drops are "
        f"compared within one version only, so their baseline begins anew. First run `tracejudge judges show {JUDGE}`.",
        "runbook_url": f"{RUNBOOKS}/safety-and-judge.md#{CHANGED.lower()}",
        "dashboard_url": f"http://localhost:3000/d/tracejudge-quality/tracejudge-quality?{variables}",
    }
    (info,) = picture.read("info", 1)
    assert info["title"] == f"[INFO] {told.annotations['summary']}"
    assert picture.read("page", 0) == picture.read("ticket", 0) == []


def version(settings: Mapping[str, object]) -> str:
    """Return a judge's version as it stands in labels."""
    return catalogue()[JUDGE].configured(settings).version[:8]
