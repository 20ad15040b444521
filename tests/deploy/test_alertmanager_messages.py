"""How Alertmanager's messages read, as the committed templates write them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from alertmanager_run import BOT, Alertmanager, Inbox, alert, running
from expected import RUNBOOKS


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[Alertmanager]:
    with running(tmp_path) as started:
        yield started


def test_a_page_says_what_where_since_when_and_what_to_open(alertmanager: Alertmanager) -> None:
    alertmanager.post(alert("TraceJudgeQualityDrop", "page", "quality", **BOT))
    (message,) = alertmanager.inbox.wait_for("page")
    assert shown(message.attachment) == {
        "title": "[PAGE] TraceJudgeQualityDrop happened",
        "fallback": "[PAGE] TraceJudgeQualityDrop happened",
        "title_link": "http://localhost:3000/d/tracejudge-quality",
        "color": "danger",
        "text": "In the last 1h 61% of 120 judgements passed.\n"
        "Firing since 03:05 UTC, 21 January.\n"
        "Dashboard: http://localhost:3000/d/tracejudge-quality\n"
        f"Runbook: {RUNBOOKS}/quality.md#tracejudgequalitydrop",
    }


def test_programs_get_labels_and_annotations_whole(alertmanager: Alertmanager) -> None:
    sent = alert("TraceJudgeQualityDrop", "page", "quality", **BOT)
    alertmanager.post(sent)
    (message,) = alertmanager.inbox.wait_for("webhook")
    (got,) = message.body["alerts"]
    assert (got["labels"], got["annotations"], got["status"]) == (sent["labels"], sent["annotations"], "firing")


def test_an_incident_is_one_message_of_five_alerts_at_most(alertmanager: Alertmanager) -> None:
    """The metrics of one judge on one service belong together; another judge's drop is a message of its own."""
    metrics = [f"metric-{number}" for number in range(7)]
    drops = [alert("TraceJudgeQualityDrop", "page", "quality", **(BOT | {"metric": metric})) for metric in metrics]
    alertmanager.post(*drops, alert("TraceJudgeQualityDrop", "page", "quality", **(BOT | {"judge": "safety"})))
    message = alertmanager.inbox.wait_for_titled("page", "7 alerts")
    text = shown(message.attachment)
    assert text["title"] == "[PAGE] 7 alerts on support-bot, prod: TraceJudgeQualityDrop happened, and more"
    assert text["text"].count("\n\n* TraceJudgeQualityDrop happened\nIn the last") == 4
    assert text["text"].startswith("* TraceJudgeQualityDrop happened\n")
    assert text["text"].endswith("\n\n5 of 7 are shown; all of them: http://localhost:9093/#/alerts?receiver=page")
    alertmanager.inbox.wait_for_titled("page", "[PAGE] TraceJudgeQualityDrop happened")


def test_who_is_blind_on_every_service_wakes_somebody_once(alertmanager: Alertmanager) -> None:
    services = ("support-bot", "code-helper", "summariser")
    alertmanager.post(*(alert("TraceJudgeNoVerdicts", "page", "watcher", service=service) for service in services))
    message = alertmanager.inbox.wait_for_titled("page", "3 alerts")
    assert message.attachment["title"] == "[PAGE] 3 alerts on the pipeline: TraceJudgeNoVerdicts happened, and more"


def test_the_pipeline_is_named_where_no_service_is(alertmanager: Alertmanager) -> None:
    alertmanager.post(
        alert("TraceJudgeExporterBehind", "ticket", "watcher", exporter="otel"),
        alert("TraceJudgeTracesCutOff", "ticket", "watcher"),
    )
    message = alertmanager.inbox.wait_for_titled("ticket", "2 alerts")
    assert shown(message.attachment)["title"].startswith("[TICKET] 2 alerts on the pipeline: TraceJudge")
    assert message.attachment["color"] == "warning"


def test_what_is_over_is_said_with_its_times(alertmanager: Alertmanager) -> None:
    alertmanager.post(alert("TraceJudgeQualityDrop", "page", "quality", **BOT))
    alertmanager.inbox.wait_for("page")
    alertmanager.post(alert("TraceJudgeQualityDrop", "page", "quality", over=True, **BOT))
    message = alertmanager.inbox.wait_for("page", 2)[-1]
    assert shown(message.attachment) == {
        "title": "[RESOLVED] TraceJudgeQualityDrop happened",
        "fallback": "[RESOLVED] TraceJudgeQualityDrop happened",
        "title_link": "http://localhost:3000/d/tracejudge-quality",
        "color": "good",
        "text": "Over: TraceJudgeQualityDrop happened (from 03:05 to 04:20 UTC, 21 January)",
    }


def test_what_goes_on_stands_before_what_is_over(alertmanager: Alertmanager) -> None:
    other = BOT | {"metric": "correctness"}
    alertmanager.post(
        alert("TraceJudgeQualityDrop", "page", "quality", **BOT),
        alert("TraceJudgeQualityDrop", "page", "quality", **other),
    )
    alertmanager.inbox.wait_for("page")
    alertmanager.post(alert("TraceJudgeQualityDrop", "page", "quality", over=True, **other))
    # Alerts that come together may miss the group's first message, and then a second says that both go on.
    text = alertmanager.inbox.wait_for_said("page", "Over: ").attachment["text"]
    assert text.startswith("* TraceJudgeQualityDrop happened\nIn the last")
    assert text.endswith("\n\nOver: TraceJudgeQualityDrop happened (from 03:05 to 04:20 UTC, 21 January)")


def test_an_alert_of_others_without_annotations_reads_as_well(alertmanager: Alertmanager) -> None:
    alertmanager.post({"labels": {"alertname": "DiskFull", "severity": "page"}, "startsAt": "2026-01-21T03:05:00Z"})
    (message,) = alertmanager.inbox.wait_for("page")
    assert shown(message.attachment) == {
        "title": "[PAGE] DiskFull",
        "fallback": "[PAGE] DiskFull",
        "title_link": "http://localhost:9093",
        "color": "danger",
        "text": "Firing since 03:05 UTC, 21 January.",
    }


@pytest.mark.parametrize("failures", [0, 1])
def test_a_message_comes_again_only_where_its_request_failed(failures: int) -> None:
    with Inbox() as inbox, httpx.Client(base_url=inbox.root_url, timeout=60, trust_env=False) as sender:
        inbox.failures = lambda: failures
        for receiver in ("page", "ticket", "page"):
            sender.post(receiver, json={"attachments": [{"text": "It fell."}]})
        assert len(inbox.messages("ticket")) == 1
        if failures:
            assert len(inbox.messages("page")) == 1
            return
        with pytest.raises(AssertionError, match="1 came again and 0 requests failed"):
            inbox.messages("page")


def shown(attachment: dict[str, Any]) -> dict[str, str]:
    return {name: attachment[name] for name in ("title", "fallback", "title_link", "color", "text")}
