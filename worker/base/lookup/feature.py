"""Stored verdicts, traces and human labels: look-ups read them, replays judge them again, forget erases them."""

from typing import Final

from worker.core.config.settings import MIB, Size
from worker.core.features import Feature, Table
from worker.core.storage.keys import Key, KeySpace


class LookupKeys(KeySpace):
    labels = Key(
        "labels", "Hash of human labels by id, and of verdicts on their traces by label and evaluation id. No TTL."
    )
    answers = Key(
        "labels:answers", "Hash of label id and annotator to what the annotator answered on the board. No TTL."
    )
    labelled = Key("labels:traces", "Hash of trace id to a redacted copy of a labelled trace. No TTL.")
    labelled_bytes = Key("labels:bytes", "String, the bytes of all copies of labelled traces. No TTL.")

    def forgetting(self, name: str) -> str:
        """String, trace ids of a person or session as JSON, until all of it is erased; TTL of a week."""
        return f"{self.prefix}:forgetting:{name}"

    def replay(self, name: str) -> str:
        """Hash of one replay: question, position, counts; TTL of the ledger since its last step."""
        return f"{self.prefix}:replay:{name}"


KEEP_LABELLED: Final = Table(
    "keep_labelled",
    bool,
    default=True,
    text="Keep a redacted copy of each trace that gets a label, for as long as the label.",
)
MAX_LABELLED_BYTES: Final = Table(
    "max_labelled_bytes", Size, 256 * MIB, "Maximum of these copies; further labels are stored without one."
)
FEATURE: Final = Feature(
    name="lookup", tables=(KEEP_LABELLED, MAX_LABELLED_BYTES), keys=LookupKeys, scripts=__package__
)
