"""Where those stand who take from the streams and from the ready batches: what readiness hears once a second."""

from collections.abc import Mapping, Sequence

from worker.keys import INGEST_GROUP
from worker.store import Store

__all__ = ["expected", "marks"]

_ALL_FLOWS = {
    "ingest": "entries wait in the stream and none is read",
    "export": "verdicts wait in the outbox and none is read",
    "judge": "batches are ready, there is room, and none is taken",
}


def expected(roles: Sequence[str], groups: Sequence[str], judge_models: Sequence[str]) -> list[tuple[str, str, str]]:
    """List the flows of a worker as ``Readiness.expect`` takes them: name, role, what a standstill means."""
    of_role = {
        "ingest": [INGEST_GROUP],
        "export": [f"export:{group}" for group in groups],
        "judge": [f"judge:{judge_model}" for judge_model in judge_models],
    }
    return [(name, role, _ALL_FLOWS[role]) for role in roles for name in of_role[role]]


def marks(store: Store, groups: Sequence[str], room: Mapping[str, bool]) -> dict[str, str | None]:
    """Look where all takers stand.

    Args:
        groups: The exporters of the outbox.
        room: By judge model whether more batches may be taken here now; empty where this worker does not judge.

    Returns:
        By flow a mark that changes when something is taken; None where nothing waits that could be taken.

    Raises:
        StoreError: Redis did not answer.
    """
    keys = store.keys
    ready = [keys.ready(judge_model) for judge_model in room]
    found = store.run("standing", (keys.traces, keys.verdicts, *ready), (INGEST_GROUP, *groups))
    names = [INGEST_GROUP, *(f"export:{group}" for group in groups), *(f"judge:{model}" for model in room)]
    at = {name: raw.decode() or None for name, raw in zip(names, found, strict=True)}
    return at | {f"judge:{model}": None for model, has_room in room.items() if not has_room}
