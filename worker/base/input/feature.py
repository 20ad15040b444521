"""Input that could not be used: the last invalid entries, and the fields that were left out of traces."""

from typing import Final

from worker.core.features import Command, Feature, IngestHook, TraceHookContext
from worker.core.storage.keys import Key, KeySpace


class InputKeys(KeySpace):
    invalid = Key("invalid", "Stream of the last 100 entries that were no traces, without their texts; TTL of a week.")
    unread = Key(
        "unread",
        "Hash of instrumentations whose spans no dialect reads: `kind NAME` to the last ones, `count NAME` to spans."
        " TTL of a week.",
    )
    left_out = Key("left_out", "Hash of field and type to the last trace of which that was left out; TTL of a week.")


def _ingest(context: TraceHookContext) -> IngestHook:
    from worker.base.input.unusable import UnusableInput

    return UnusableInput(context.ledger.store)


_INVALID: Final = Command("worker.base.input.invalid", "List the last entries that were no traces")
FEATURE: Final = Feature(name="input", keys=InputKeys, ingest=_ingest, commands={"invalid": _INVALID})
