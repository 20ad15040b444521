"""A rolling upgrade with panels: workers that do not know them judge nothing of theirs, and lose nothing of it."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from support.dead_parts import retry_all
from support.judging_parts import HOUR_S, Desks, assert_settled, letters
from support.panel_parts import (
    MODELS,
    NO,
    PANEL,
    SETUP,
    TOGETHER,
    balanced,
    chosen,
    finish,
    in_order,
    panel_desk,
    verdicts,
)
from support.replay_parts import Replays
from support.stage_parts import Chosen, Ground, make_trace, settings_of

from judges.core.verdict import Origin
from judges.models.scripted import Step
from tracejudge import Trace
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.core.config.settings import Rule
from worker.core.queue.batch import Batch, BatchError, Evaluation, Item

OTHER = Rule(name="other", judges=("relevance_to_query",), model="default")
AWAY = Step(failure="judge_unavailable")


class _OldEvaluation(Struct, frozen=True):
    """What a worker knew before there were panels; all else of an evaluation it passes over."""

    id: str
    period: str
    judge: str
    version: str
    probability: float
    origin: Origin = "live"


class _OldItem(Struct, frozen=True):
    trace: Trace
    evaluations: tuple[_OldEvaluation, ...]


class _OldBatch(Struct, frozen=True):
    v: int
    id: str
    model: str
    judge_model: str
    created_at: float
    items: tuple[_OldItem, ...]


def old_decode(payload: bytes) -> Batch:
    """Read a batch as workers did before there were panels."""
    batch = msgspec.json.decode(payload, type=_OldBatch)
    if batch.v != 1:
        raise BatchError(f"version {batch.v} of a batch is unknown here")
    items = (
        Item(item.trace, tuple(Evaluation(**msgspec.structs.asdict(one)) for one in item.evaluations))
        for item in batch.items
    )
    return msgspec.convert(msgspec.structs.asdict(batch) | {"items": tuple(items)}, Batch)


def versions(ground: Ground) -> dict[str, set[int]]:
    """Read the versions of the batches of each judge model."""
    found: dict[str, set[int]] = {}
    for key in ground.client.scan_iter(ground.keys.batch("*")):
        batch = json.loads(ground.client.get(key))
        found.setdefault(batch["judge_model"], set()).add(batch["v"])
    return found


def letter_versions(ground: Ground) -> dict[str, int]:
    return {one["judge_model"]: one["v"] for one in map(json.loads, ground.client.hvals(ground.keys.dead))}


def test_an_older_worker_hands_back_what_is_combined(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = chosen(ground, 1)
    with monkeypatch.context() as before:
        before.setattr("worker.core.judging.fetching.decode", old_decode)
        older = panel_desk(desk, a=NO, asked=lambda: frozenset(of))
        finish(ground, older)
        assert (older.asked, ground.outbox("j")) == ([], [])
        older.judging.stop(0.1)
    finish(ground, panel_desk(desk))
    assert_settled(ground, scored=4)
    assert verdicts(ground)[PANEL].scores[0].passed


def test_what_no_panel_combines_is_judged_by_older_workers_too(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.core.judging.fetching.decode", old_decode)
    chosen(ground, 1, rules=(OTHER,))
    finish(ground, panel_desk(desk, rules=(OTHER,)))
    assert_settled(ground, scored=1)


def test_only_batches_of_what_is_combined_have_the_later_version(ground: Ground) -> None:
    apart = msgspec.structs.replace(TOGETHER, model=("first", "last"))
    ground.add(make_trace(0))
    Chosen(ground, models=MODELS, rules=(apart, OTHER)).take()
    assert versions(ground) == {"a": {2}, "c": {2}, "majority(a,c)": {2}, "b": {1}}


def test_a_batch_of_both_has_the_later_version_from_the_first_that_is_combined(ground: Ground) -> None:
    for number in range(3):
        ground.add(make_trace(number))
    Chosen(ground, **{**SETUP, "rules": (OTHER, TOGETHER), "batch_size": 1}).take()
    assert versions(ground) == {"a": {2}, "b": {1, 2}, "c": {2}, PANEL: {2}}
    ground.add(make_trace(3))
    ground.client.delete(*ground.client.scan_iter(ground.keys.batch("*")))
    Chosen(ground, **{**SETUP, "rules": (OTHER, TOGETHER)}).take()
    assert versions(ground) == {"a": {2}, "b": {2}, "c": {2}, PANEL: {2}}


def test_so_has_a_replay(ground: Ground) -> None:
    ground.add(make_trace(1))
    Chosen(ground, models=MODELS, rules=(msgspec.structs.replace(TOGETHER, rate=0.0),)).take()
    Replays(ground, **SETUP).make()
    assert versions(ground) == {"a": {2}, "b": {2}, "c": {2}, PANEL: {2}}


def test_letters_and_their_retries_have_it_and_keep_what_they_need(ground: Ground, desk: Desks) -> None:
    given_up(ground, desk)
    assert letter_versions(ground) == {"b": 2, "c": 2, PANEL: 2}
    retry_all(ground, settings_of(ground, **SETUP))
    assert versions(ground) == {"b": {2}, "c": {2}, PANEL: {2}}
    finish(ground, panel_desk(desk))
    assert_settled(ground, scored=4)
    assert verdicts(ground)[PANEL].scores[0].passed


def test_other_letters_have_the_former_one(ground: Ground, desk: Desks) -> None:
    chosen(ground, 1, rules=(OTHER,), age_s=7 * HOUR_S)
    finish(ground, panel_desk(desk, b=AWAY, rules=(OTHER,)))
    assert letter_versions(ground) == {"b": 1}
    assert len(letters(ground)) == 1


def given_up(ground: Ground, desk: Desks) -> None:
    """Run a worker that gives up two members, and their panel."""
    chosen(ground, 1, age_s=7 * HOUR_S)
    in_order(ground, panel_desk(desk, b=AWAY, c=AWAY), "a", "b", "c", PANEL)
    assert balanced(ground).dead == 3


def test_forgetting_leaves_a_batch_its_version(ground: Ground) -> None:
    chosen(ground, 2)
    settings: Any = settings_of(ground, **SETUP)
    Forgetting(ground.store, settings, ForgetTarget(trace_id=make_trace(0).trace_id)).run()
    assert versions(ground) == {"a": {2}, "b": {2}, "c": {2}, PANEL: {2}}
    assert {len(batch.items) for batch in ground.batches().values()} == {1}
