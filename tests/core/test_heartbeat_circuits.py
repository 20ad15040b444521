"""A judge model is dead when all workers that ask it say so, and for as long as the last one to notice says."""

from collections.abc import Mapping

import msgspec
import pytest
from support.stage_parts import Keyspace, go_by

from worker.core.telemetry.health import Heartbeat

WORD_MS = 10_000
NOW_S = 1_700_000_000

Word = Mapping[str, float | None]


def said(keyspace: Keyspace) -> list[dict[str, float | None]]:
    words = keyspace.client.hvals(keyspace.keys.circuits)
    return [msgspec.json.decode(word.split(b" ", 1)[1]) for word in words]


@pytest.fixture
def _still(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock."""
    go_by(monkeypatch, keyspace, str(NOW_S))


def say(keyspace: Keyspace, process: str, circuits: Word, *, ago_ms: int) -> None:
    """Leave the word of a worker of some time ago, while time stands still."""
    word = b"%d %s" % (NOW_S * 1000 - ago_ms, msgspec.json.encode(circuits))
    keyspace.client.hset(keyspace.keys.circuits, process, word)


def listener(keyspace: Keyspace) -> Heartbeat:
    """Make the part of a worker that judges nothing."""
    return Heartbeat(keyspace.store, dict)


@pytest.mark.parametrize(
    ("words", "dead"),
    [
        ([], {}),
        ([{"a": 0.0, "b": 0.0}], {}),
        ([{"a": 7.5, "b": 0.0}], {"a": 7.5}),
        ([{"a": 30.0}, {"a": 4.0}, {"a": 12.0}], {"a": 4.0}),
        ([{"a": 30.0}, {"a": 0.0}], {}),
        ([{"a": 1.0}, {"b": 2.0}], {"a": 1.0, "b": 2.0}),
        ([{"a": 1.0, "b": 2.0}, {"b": 0.0}], {"a": 1.0}),
        ([{}, {"a": 1.0}], {"a": 1.0}),
        ([{"a": None}, {"a": 30.0}, {"a": None}], {"a": 30.0}),
        ([{"a": None}, {"a": 0.0}, {"a": 30.0}], {}),
        ([{"a": None}, {"a": None}], {}),
    ],
    ids=[
        "nobody",
        "all well",
        "the only one",
        "all",
        "one gets through",
        "each its own",
        "some of both",
        "idle",
        "the others have not asked yet",
        "one gets through and another has not asked yet",
        "nobody has asked yet",
    ],
)
def test_a_model_is_dead_when_all_workers_that_call_it_report_an_open_circuit(
    keyspace: Keyspace, words: list[Word], dead: dict[str, float]
) -> None:
    workers = [Heartbeat(keyspace.store, lambda word=word: word) for word in words]
    for worker in workers:
        worker.exchange_circuits()
    assert [worker.exchange_circuits() for worker in (*workers, listener(keyspace))] == [dead] * (len(words) + 1)


@pytest.mark.parametrize(
    ("words", "asked"),
    [([], set()), ([{"a": None}], {"a"}), ([{"a": 0.0}, {"b": 9.0}, {"b": None, "c": None}], {"a", "b", "c"})],
    ids=["nobody", "not asked yet", "several"],
)
def test_configured_models_are_those_of_all_workers(keyspace: Keyspace, words: list[Word], asked: set[str]) -> None:
    for word in words:
        Heartbeat(keyspace.store, lambda word=word: word).exchange_circuits()
    circuits = listener(keyspace)
    assert circuits.configured_models is None, "nothing is known before the first exchange"
    circuits.exchange_circuits()
    assert circuits.configured_models == asked


def test_a_worker_that_judges_nothing_only_listens(keyspace: Keyspace) -> None:
    before = keyspace.everything()
    assert listener(keyspace).exchange_circuits() == {}
    assert keyspace.everything() == before


def test_published_circuits_follow_the_state_of_the_worker(keyspace: Keyspace) -> None:
    here: dict[str, float | None] = {}
    worker = Heartbeat(keyspace.store, lambda: here)
    values = []
    for open_for_s in (None, 0.0, 3.5, 0.0):
        here["a"] = open_for_s
        values.append(worker.exchange_circuits())
    assert values == [{}, {}, {"a": 3.5}, {}]
    assert said(keyspace) == [{"a": 0.0}], "one word a worker"


@pytest.mark.usefixtures("_still")
def test_the_word_of_a_worker_that_ended_does_not_count_for_long(keyspace: Keyspace) -> None:
    say(keyspace, "ended", {"a": 0.0, "b": 60.0}, ago_ms=WORD_MS + 1)
    say(keyspace, "ahead of our time", {"a": 0.0}, ago_ms=-WORD_MS - 1)
    worker = Heartbeat(keyspace.store, lambda: {"a": 5.0})
    assert (worker.exchange_circuits(), worker.configured_models) == ({"a": 5.0}, {"a"})
    assert said(keyspace) == [{"a": 5.0}], "and is not kept"


@pytest.mark.usefixtures("_still")
@pytest.mark.parametrize("ago_ms", [WORD_MS, -WORD_MS], ids=["busy", "ahead of our time"])
def test_a_word_counts_until_it_is_old(keyspace: Keyspace, ago_ms: int) -> None:
    say(keyspace, "another", {"a": 0.0}, ago_ms=ago_ms)
    assert Heartbeat(keyspace.store, lambda: {"a": 5.0}).exchange_circuits() == {}
    assert said(keyspace) == [{"a": 0.0}, {"a": 5.0}], "and is kept"


@pytest.mark.usefixtures("_still")
def test_circuits_of_a_model_without_workers_expire(keyspace: Keyspace) -> None:
    say(keyspace, "ended", {"a": 60.0}, ago_ms=WORD_MS + 1)
    circuits = listener(keyspace)
    assert (circuits.exchange_circuits(), circuits.configured_models) == ({}, set())
    assert said(keyspace) == []
