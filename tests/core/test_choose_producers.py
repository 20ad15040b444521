"""What producers published: by what they sent and report, each trace once, and bare ones when they are read."""

import itertools

import pytest
from support.stage_parts import IngestHarness, Keyspace, make_trace, make_traces, samples, select_metrics

from worker.base.accounting import read_account
from worker.core.config.settings import Rule, Where


def test_a_producers_traces_count_as_published_when_sent_bare_ones_when_read(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace)
    keyspace.append("p1", make_traces(range(10)), service="shop")
    for trace in make_traces(range(10, 15)):
        keyspace.add(trace)
    chosen.process(keyspace.read(count=4))
    assert keyspace.counted("published", "sent", "bare", "arrived") == {
        "published": 10,
        "sent": 10,
        "bare": 0,
        "arrived": 4,
    }
    chosen.process()
    assert keyspace.counted("published", "sent", "bare", "arrived") == {
        "published": 15,
        "sent": 10,
        "bare": 5,
        "arrived": 15,
    }
    assert select_metrics(samples(chosen.metrics), "producer_published_total") == {
        ("producer_published_total", "service=shop"): 15
    }


def test_bare_traces_count_as_published_by_their_own_service(keyspace: Keyspace) -> None:
    nothing = Rule(name="some", judges=("safety",), where=Where(service="a"))
    chosen = IngestHarness(keyspace, rules=(nothing,))
    for number, service in enumerate("aabbbc"):
        keyspace.add(make_trace(number, service=service))
    chosen.process()
    assert select_metrics(samples(chosen.metrics), "producer_published_total") == {
        ("producer_published_total", "service=a"): 2,
        ("producer_published_total", "service=b"): 3,
        ("producer_published_total", "service=c"): 1,
    }


def test_the_largest_report_counts_though_reports_are_late_or_repeated(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace)
    for published, full, invalid in ((10, 2, 0), (7, 1, 0), (10, 2, 0), (12, 2, 1), (11, 2, 0)):
        keyspace.report("p1", published, buffer_full=full, invalid=invalid)
        chosen.process()
    assert keyspace.counted("published", "dropped", "dropped:buffer_full", "dropped:invalid", "arrived", "read") == {
        "published": 12,
        "dropped": 3,
        "dropped:buffer_full": 2,
        "dropped:invalid": 1,
        "arrived": 0,
        "read": 5,
    }
    assert select_metrics(samples(chosen.metrics), "producer_published_total", "producer_dropped_total") == {
        ("producer_published_total", "service=shop"): 12,
        ("producer_dropped_total", "reason=buffer_full", "service=shop"): 2,
        ("producer_dropped_total", "reason=invalid", "service=shop"): 1,
    }


def test_reports_of_several_producers_in_one_read_add_up(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace)
    for producer, published in itertools.product(("p1", "p2"), (3, 5, 4)):
        keyspace.append(producer, [make_trace(published)], service="shop")
        keyspace.report(producer, published, too_large=1)
    chosen.process()
    assert keyspace.counted("published", "dropped", "sent", "sampled", "duplicate") == {
        "published": 10,
        "dropped": 2,
        "sent": 6,
        "sampled": 3,
        "duplicate": 3,
    }


def test_traces_after_a_report_with_drops_count_as_published_at_once(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace)
    keyspace.append("p1", make_traces(range(4)))
    keyspace.report("p1", 10, buffer_full=6)
    chosen.process()
    keyspace.append("p1", make_traces(range(4, 9)))
    before = read_account(keyspace.store)
    chosen.process()
    after = read_account(keyspace.store)
    assert (before.published, before.dropped, before.unread, before.lost) == (15, 6, 5, 0)
    assert (after.published, after.dropped, after.unread, after.lost) == (15, 6, 0, 0)
    assert keyspace.accounting()["published"] == 15


def test_a_report_alone_makes_no_key_that_stays(keyspace: Keyspace) -> None:
    report = {"producer": "forged", "seq": 1, "service": "shop", "published": 3, "accepted": 3, "dropped": {}}
    keyspace.add(report, kind="r")
    keyspace.report("p1", 3)
    IngestHarness(keyspace).process()
    assert 0 < keyspace.client.ttl(keyspace.keys.producer("forged")) <= 90 * 86_400
    assert 0 < keyspace.client.ttl(keyspace.keys.producer("p1")) <= 1000, "the producer's own TTL stays"


@pytest.mark.parametrize("kind", ["f", "r"])
def test_a_producers_unreadable_feedback_or_report_unbalances_nothing(keyspace: Keyspace, kind: str) -> None:
    chosen = IngestHarness(keyspace)
    keyspace.append("p1", [make_trace(1)])
    keyspace.append("p1", [b"{"], kind=kind)
    chosen.process()
    account = read_account(keyspace.store)
    assert (account.published, account.sampled, account.invalid, account.lost) == (2, 1, 1, 0)
