"""The check at the end of every experiment: nothing lost, nothing counted twice, nothing left in Redis."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from support.otlp import OtlpReceiver
from support.pipeline import Pipeline

from judges.core.verdict import Verdict
from worker.base.accounting import Account
from worker.core.storage.client import StoreError

VERDICTS = "tracejudge_verdicts_total"
EVALUATION_ID = "tracejudge.evaluation.id"


def is_clean(pipeline: Pipeline) -> bool:
    """Return whether no work is left and the exporters have read everything; False without Redis."""
    try:
        return not unfinished_work(pipeline) and not unread_groups(pipeline)
    except StoreError:
        return False


def check_accounting(
    pipeline: Pipeline, account: Account, otlp: OtlpReceiver, *, counted: float, all_spans: bool
) -> None:
    """Check the sums of an experiment that has settled.

    Args:
        pipeline: Where it ran.
        account: Its account.
        otlp: The receiver of its spans, one of each verdict unless ``all_spans`` is False.
        counted: Verdicts on the last metrics pages of all workers.
        all_spans: See above.
    """
    assert account.lost == 0, account
    entries = pipeline.outbox()
    verdicts = [entry.verdict for entry in entries if entry.kind == "j"]
    _check_verdicts(pipeline, account, verdicts)
    _check_counts(verdicts, counted)
    _check_spans({verdict.evaluation_id for verdict in verdicts}, otlp, all_spans=all_spans)
    assert unfinished_work(pipeline) == {}
    assert unread_groups(pipeline) == {}


def unfinished_work(pipeline: Pipeline) -> dict[str, Any]:
    """Return the amounts of unfinished work in Redis by key; empty when all work is done."""
    keys = pipeline.keys
    counted = {
        keys.leases: pipeline.store.call(lambda client: client.zcard(keys.leases)),
        keys.holders: pipeline.store.call(lambda client: client.hlen(keys.holders)),
        keys.waiting: sum(map(int, pipeline.store.call(lambda client: client.hvals(keys.waiting)))),
        **{pattern: _amount(pipeline, pattern) for pattern in (keys.batch("*"), keys.ready("*"), keys.tries("*"))},
    }
    return {key: amount for key, amount in counted.items() if amount}


def unread_groups(pipeline: Pipeline) -> dict[str, Any]:
    """Return the consumer groups with pending or unread entries."""
    positions = {}
    for stream in (pipeline.keys.traces, pipeline.keys.verdicts):
        newest = pipeline.store.call(lambda client, name=stream: client.xrevrange(name, count=1))
        last = _parts(newest[0][0]) if newest else (0, 0)
        for group in pipeline.store.call(lambda client, name=stream: client.xinfo_groups(name)):
            pending, position = group["pending"], _parts(group["last-delivered-id"])
            if pending or position < last:
                positions[group["name"].decode()] = (pending, position, last)
    return positions


def _check_verdicts(pipeline: Pipeline, account: Account, verdicts: Sequence[Verdict]) -> None:
    finished = account.chosen - account.dead - account.waiting - account.removed
    assert account.chosen == len(pipeline.ledger()), "chosen twice, or missing in the accounting"
    # The ledger has those that were removed, as by `forget`, as well.
    finished_ids = {name for name, state in pipeline.ledger().items() if state not in {b"0", b"4"}}
    assert finished_ids == {verdict.evaluation_id for verdict in verdicts}
    assert finished == len(verdicts), f"{finished} evaluations are finished, with {len(verdicts)} verdicts"
    twice = {name: times for name, times in Counter(v.evaluation_id for v in verdicts).items() if times > 1}
    assert twice == {}, "in the outbox more than once"
    assert [verdict for verdict in verdicts if verdict.outcome == "scored" and not verdict.scores] == []
    assert account.scored == sum(verdict.outcome == "scored" for verdict in verdicts)


def _check_counts(verdicts: Sequence[Verdict], counted: float) -> None:
    """Counts since the last scrape are lost with a killed worker, so the total may be lower, but never higher."""
    expected = sum(len(verdict.metrics) for verdict in verdicts)
    assert counted <= expected, f"{counted:g} counted of {expected}"


def _check_spans(evaluation_ids: set[str], otlp: OtlpReceiver, *, all_spans: bool) -> None:
    """A span may arrive twice, under the same ids."""
    ids: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for span in otlp.spans:
        if EVALUATION_ID in span.attributes and not span.parent_span_id:
            ids[span.attributes[EVALUATION_ID]].add((span.trace_id, span.span_id))
    assert {name: several for name, several in ids.items() if len(several) > 1} == {}, "one evaluation, several spans"
    assert ids.keys() <= evaluation_ids, "spans of evaluations that have no verdict"
    if all_spans:
        assert len(evaluation_ids - ids.keys()) == 0, "verdicts without a span"


def _amount(pipeline: Pipeline, pattern: str) -> int:
    return len(pipeline.store.call(lambda client: set(client.scan_iter(pattern, count=5000))))


def _parts(entry_id: bytes) -> tuple[int, int]:
    time_ms, sequence = entry_id.split(b"-")
    return int(time_ms), int(sequence)
