"""The batches of the sender: their contents, order and times."""

import pytest
from sdk_bench import Bench

from tracejudge.delivery.buffer import Item, Kind
from tracejudge.log import DeliveryError


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_queued_items_are_sent_as_one_numbered_batch(bench: Bench) -> None:
    bench.put("a", "b")
    bench.steps(1)
    bench.put("c")
    bench.steps(1)
    assert [batch.number for batch in bench.stream.attempts] == [1, 2]
    assert [bench.outputs(0), bench.outputs(1)] == [["a", "b"], ["c"]]
    assert bench.buffer.settled == 3


def test_feedback_travels_in_order_with_the_traces(bench: Bench) -> None:
    bench.put("a")
    bench.buffer.put(Item(Kind.FEEDBACK, {"trace_id": "1", "score": 1}, 1))
    bench.steps(1)
    assert [entry.kind for entry in bench.stream.attempts[0].entries] == [Kind.TRACE, Kind.FEEDBACK]


def test_a_batch_holds_at_most_500_entries(bench: Bench) -> None:
    bench.put(*map(str, range(501)))
    bench.steps(2)
    assert [len(batch.entries) for batch in bench.stream.attempts] == [500, 1]


def test_a_batch_holds_about_2_mib(bench: Bench) -> None:
    bench.put("a", "b", "c", size_bytes=1_200_000)
    bench.steps(2)
    assert [bench.outputs(0), bench.outputs(1)] == [["a", "b"], ["c"]]


def test_an_unconfirmed_batch_goes_again_under_its_number_and_before_any_other(bench: Bench) -> None:
    bench.stream.failures = [DeliveryError("gone"), DeliveryError("gone")]
    bench.put("a")
    bench.steps(1)
    bench.put("b")
    bench.steps(2)
    first, second, third = bench.stream.attempts
    assert first is second is third
    assert (first.number, bench.buffer.settled) == (1, 1)
    bench.steps(1)
    assert (bench.stream.attempts[3].number, bench.outputs(3)) == (2, ["b"])


def test_failures_space_the_attempts_out(bench: Bench) -> None:
    bench.stream.failures = [DeliveryError("gone")] * 4
    bench.put("a")
    bench.wakeup.wait(0)
    bench.wakeup.waits.clear()
    bench.steps(4)
    assert bench.wakeup.waits == [0.05, 0.1, 0.2, 0.4]


def test_a_flush_in_trouble_makes_the_delays_short_again(bench: Bench) -> None:
    bench.stream.failures = [DeliveryError("gone")] * 4
    bench.put("a")
    bench.wakeup.wait(0)
    bench.wakeup.waits.clear()
    bench.steps(2)
    bench.wakeup.open()
    bench.steps(2)
    assert bench.wakeup.waits == [0.05, 0.1, 0.2, 0.05]


@pytest.mark.swallows
def test_an_unexpected_error_is_logged_and_the_sender_goes_on(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.stream.failures = [RuntimeError("not expected")]
    bench.stream.during = lambda: bench.sender.end() if len(bench.stream.attempts) == 2 else None
    bench.put("a")
    bench.sender.run()
    assert "Publishing to Redis at redis://host:6379/0 failed (RuntimeError); 1 waiting" in caplog.messages
    assert bench.buffer.settled == 1


def test_an_unexpected_error_keeps_the_batch(bench: Bench) -> None:
    bench.stream.failures = [RuntimeError("not expected")]
    bench.put("a")
    with pytest.raises(RuntimeError):
        bench.steps(1)
    bench.steps(1)
    assert [batch.number for batch in bench.stream.attempts] == [1, 1]
    assert bench.buffer.settled == 1


def test_after_a_batch_that_was_not_full_it_lingers(bench: Bench) -> None:
    """Who publishes in these milliseconds need not wake it."""
    bench.put("a")
    bench.wakeup.wait(0)
    bench.wakeup.waits.clear()
    bench.steps(1)
    assert bench.wakeup.waits == [0.02]
    bench.put(*map(str, range(499)))
    assert not bench.wakeup.wait(0)
    bench.put("b")
    assert bench.wakeup.wait(0), "a full batch need not wait"


def test_a_full_batch_is_followed_at_once(bench: Bench) -> None:
    bench.put(*map(str, range(1_000)))
    bench.wakeup.wait(0)
    bench.wakeup.waits.clear()
    bench.steps(1)
    assert bench.wakeup.waits == []


def test_the_next_batch_is_prepared_while_redis_works(bench: Bench) -> None:
    """Once: what comes later still finds room in it."""
    bench.stream.during = lambda: bench.put(*map(str, range(100)))
    bench.put("a")
    bench.wakeup.wait(0)
    bench.wakeup.waits.clear()
    bench.steps(1)
    assert (bench.buffer.queued, bench.buffer.settled, bench.buffer.taken) == (0, 1, 101)
    assert bench.wakeup.waits == []
    bench.stream.during = lambda: None
    bench.put("z")
    bench.steps(1)
    assert bench.outputs(1) == [*map(str, range(100)), "z"]
    assert bench.buffer.settled == 102


def test_few_items_wait_for_others(bench: Bench) -> None:
    bench.stream.during = lambda: bench.put(*map(str, range(99)))
    bench.put("a")
    bench.steps(1)
    assert bench.buffer.queued == 99


def test_what_is_prepared_survives_an_outage(bench: Bench) -> None:
    bench.stream.failures = [DeliveryError("gone")] * 2
    bench.stream.during = lambda: bench.put(*map(str, range(100)))
    bench.put("a")
    bench.steps(2)
    bench.stream.during = lambda: None
    ticket = bench.flushes.request(bench.buffer.accepted)
    bench.steps(2)
    assert [batch.number for batch in bench.stream.attempts] == [1, 1, 1, 2]
    assert bench.outputs(3) == [*map(str, range(100))] * 2
    bench.flushes.wait(ticket, timeout_s=60)
    assert bench.buffer.settled == 201


def test_publishers_get_their_turn_between_pieces_of_a_batch(bench: Bench) -> None:
    bench.put(*map(str, range(48)))
    bench.steps(1)
    assert len(bench.turns) == 1, "nobody published after the first piece"


def test_a_buffer_that_fills_gets_no_pauses(bench: Bench) -> None:
    bench.put(*map(str, range(5_001)))
    bench.steps(1)
    assert bench.turns == []


def test_with_nothing_to_send_it_sleeps_until_an_item_or_a_report(bench: Bench) -> None:
    bench.steps(1)
    assert bench.wakeup.waits == [10.0]
    assert bench.stream.attempts == []
    bench.put("a")
    assert bench.wakeup.wait(0)


def test_at_its_end_it_closes_the_connection(bench: Bench) -> None:
    bench.put("a")
    bench.steps(1)
    assert bench.stream.connected
    bench.sender.end()
    bench.sender.run()
    assert not bench.stream.connected
