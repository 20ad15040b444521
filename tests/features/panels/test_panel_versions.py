"""A rolling upgrade with panels: workers that do not know them judge nothing of theirs, and lose nothing of it."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from support.dead_parts import retry_all
from support.judging_parts import HOUR_S, Workers, assert_settled, letters
from support.panel_parts import MODELS, NO, PANEL, SETUP, TOGETHER, chosen, finish, in_order, panel_worker, verdicts
from support.replay_parts import Replays
from support.stage_parts import IngestHarness, Keyspace, make_trace, read_balanced_account, settings_of

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
        Item(item.trace, tuple(Evaluation(**msgspec.structs.asdict(evaluation)) for evaluation in item.evaluations))
        for item in batch.items
    )
    return msgspec.convert(msgspec.structs.asdict(batch) | {"items": tuple(items)}, Batch)


def versions(keyspace: Keyspace) -> dict[str, set[int]]:
    """Read the versions of the batches of each judge model."""
    by_model: dict[str, set[int]] = {}
    for key in keyspace.client.scan_iter(keyspace.keys.batch("*")):
        batch = json.loads(keyspace.client.get(key))
        by_model.setdefault(batch["judge_model"], set()).add(batch["v"])
    return by_model


def letter_versions(keyspace: Keyspace) -> dict[str, int]:
    return {letter["judge_model"]: letter["v"] for letter in map(json.loads, keyspace.client.hvals(keyspace.keys.dead))}


def test_an_older_worker_puts_back_batches_of_panels(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = chosen(keyspace, 1)
    with monkeypatch.context() as before:
        before.setattr("worker.core.judging.fetching.decode_batch", old_decode)
        older = panel_worker(new_worker, a=NO, configured_models=lambda: frozenset(of))
        finish(keyspace, older)
        assert (older.judged_texts, keyspace.outbox("j")) == ([], [])
        older.judging.stop(0.1)
    finish(keyspace, panel_worker(new_worker))
    assert_settled(keyspace, scored=4)
    assert verdicts(keyspace)[PANEL].scores[0].passed


def test_batches_without_panels_are_judged_by_older_workers_too(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.core.judging.fetching.decode_batch", old_decode)
    chosen(keyspace, 1, rules=(OTHER,))
    finish(keyspace, panel_worker(new_worker, rules=(OTHER,)))
    assert_settled(keyspace, scored=1)


def test_only_batches_of_panels_and_members_have_the_later_version(keyspace: Keyspace) -> None:
    apart = msgspec.structs.replace(TOGETHER, model=("first", "last"))
    keyspace.add(make_trace(0))
    IngestHarness(keyspace, models=MODELS, rules=(apart, OTHER)).process()
    assert versions(keyspace) == {"a": {2}, "c": {2}, "majority(a,c)": {2}, "b": {1}}


def test_a_batch_of_both_has_the_later_version_from_the_first_that_is_combined(keyspace: Keyspace) -> None:
    for number in range(3):
        keyspace.add(make_trace(number))
    IngestHarness(keyspace, **{**SETUP, "rules": (OTHER, TOGETHER), "batch_size": 1}).process()
    assert versions(keyspace) == {"a": {2}, "b": {1, 2}, "c": {2}, PANEL: {2}}
    keyspace.add(make_trace(3))
    keyspace.client.delete(*keyspace.client.scan_iter(keyspace.keys.batch("*")))
    IngestHarness(keyspace, **{**SETUP, "rules": (OTHER, TOGETHER)}).process()
    assert versions(keyspace) == {"a": {2}, "b": {2}, "c": {2}, PANEL: {2}}


def test_so_has_a_replay(keyspace: Keyspace) -> None:
    keyspace.add(make_trace(1))
    IngestHarness(keyspace, models=MODELS, rules=(msgspec.structs.replace(TOGETHER, rate=0.0),)).process()
    Replays(keyspace, **SETUP).make()
    assert versions(keyspace) == {"a": {2}, "b": {2}, "c": {2}, PANEL: {2}}


def test_dead_letters_of_panels_and_their_retries_have_the_later_version(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    given_up(keyspace, new_worker)
    assert letter_versions(keyspace) == {"b": 2, "c": 2, PANEL: 2}
    retry_all(keyspace, settings_of(keyspace, **SETUP))
    assert versions(keyspace) == {"b": {2}, "c": {2}, PANEL: {2}}
    finish(keyspace, panel_worker(new_worker))
    assert_settled(keyspace, scored=4)
    assert verdicts(keyspace)[PANEL].scores[0].passed


def test_dead_letters_without_panels_have_the_former_version(keyspace: Keyspace, new_worker: Workers) -> None:
    chosen(keyspace, 1, rules=(OTHER,), age_s=7 * HOUR_S)
    finish(keyspace, panel_worker(new_worker, b=AWAY, rules=(OTHER,)))
    assert letter_versions(keyspace) == {"b": 1}
    assert len(letters(keyspace)) == 1


def given_up(keyspace: Keyspace, new_worker: Workers) -> None:
    """Run a worker that gives up two members, and their panel."""
    chosen(keyspace, 1, age_s=7 * HOUR_S)
    in_order(keyspace, panel_worker(new_worker, b=AWAY, c=AWAY), "a", "b", "c", PANEL)
    assert read_balanced_account(keyspace).dead == 3


def test_forgetting_leaves_a_batch_its_version(keyspace: Keyspace) -> None:
    chosen(keyspace, 2)
    settings: Any = settings_of(keyspace, **SETUP)
    Forgetting(keyspace.store, settings, ForgetTarget(trace_id=make_trace(0).trace_id)).run()
    assert versions(keyspace) == {"a": {2}, "b": {2}, "c": {2}, PANEL: {2}}
    assert {len(batch.items) for batch in keyspace.batches().values()} == {1}
