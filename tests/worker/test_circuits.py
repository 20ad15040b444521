"""A judge model is dead when all workers that ask it say so."""

from collections.abc import Mapping

import msgspec
import pytest
from stage_parts import Ground

from worker.circuits import Circuits

WORD_MS = 10_000


def said(ground: Ground) -> list[dict[str, bool]]:
    words = ground.client.hvals(ground.keys.circuits)
    return [msgspec.json.decode(word.split(b" ", 1)[1]) for word in words]


def say(ground: Ground, process: str, circuits: Mapping[str, bool], *, ago_ms: int) -> None:
    """Leave the word of a worker of some time ago."""
    seconds, _ = ground.client.time()
    word = b"%d %s" % (seconds * 1000 - ago_ms, msgspec.json.encode(circuits))
    ground.client.hset(ground.keys.circuits, process, word)


def listener(ground: Ground) -> Circuits:
    """Make the part of a worker that judges nothing."""
    return Circuits(ground.store, dict)


@pytest.mark.parametrize(
    ("words", "dead"),
    [
        ([], set()),
        ([{"a": False, "b": False}], set()),
        ([{"a": True, "b": False}], {"a"}),
        ([{"a": True}, {"a": True}], {"a"}),
        ([{"a": True}, {"a": False}], set()),
        ([{"a": True}, {"b": True}], {"a", "b"}),
        ([{"a": True, "b": True}, {"b": False}], {"a"}),
        ([{}, {"a": True}], {"a"}),
    ],
    ids=["nobody", "all well", "the only one", "all", "one gets through", "each its own", "some of both", "idle"],
)
def test_a_model_is_dead_when_all_who_ask_it_say_so(
    ground: Ground, words: list[dict[str, bool]], dead: set[str]
) -> None:
    workers = [Circuits(ground.store, lambda word=word: word) for word in words]
    for worker in workers:
        worker.exchange()
    assert [worker.exchange() for worker in (*workers, listener(ground))] == [dead] * (len(words) + 1)


def test_a_worker_that_judges_nothing_only_listens(ground: Ground) -> None:
    before = ground.everything()
    assert listener(ground).exchange() == set()
    assert ground.everything() == before


def test_a_word_follows_what_happens_here(ground: Ground) -> None:
    here = {"a": False}
    worker = Circuits(ground.store, lambda: here)
    found = []
    for is_open in (False, True, False):
        here["a"] = is_open
        found.append(worker.exchange())
    assert found == [set(), {"a"}, set()]
    assert said(ground) == [{"a": False}], "one word a worker"


def test_the_word_of_a_worker_that_ended_does_not_count_for_long(ground: Ground) -> None:
    say(ground, "ended", {"a": False, "b": True}, ago_ms=WORD_MS + 2000)
    say(ground, "ahead of our time", {"a": False}, ago_ms=-WORD_MS - 2000)
    assert Circuits(ground.store, lambda: {"a": True}).exchange() == {"a"}
    assert said(ground) == [{"a": True}], "and is not kept"


def test_a_word_counts_until_it_is_old(ground: Ground) -> None:
    say(ground, "busy", {"a": False}, ago_ms=WORD_MS - 5000)
    assert Circuits(ground.store, lambda: {"a": True}).exchange() == set()


def test_of_a_model_that_nobody_asks_any_more_nothing_is_known(ground: Ground) -> None:
    say(ground, "ended", {"a": True}, ago_ms=WORD_MS + 2000)
    assert listener(ground).exchange() == set()
    assert said(ground) == []
