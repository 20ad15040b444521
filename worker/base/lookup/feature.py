"""Stored verdicts, traces and human labels, and the commands that read them."""

from typing import Final

from worker.core.config.settings import MIB, Size
from worker.core.features import Command, Feature, Table
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


KEEP_LABELLED: Final = Table(
    "keep_labelled",
    bool,
    default=True,
    text="Keep a redacted copy of each trace that gets a label, for as long as the label.",
)
MAX_LABELLED_BYTES: Final = Table(
    "max_labelled_bytes", Size, 256 * MIB, "Maximum of these copies; further labels are stored without one."
)
_COMMANDS: Final = {
    "export": Command("worker.base.lookup.search", "Save traces with verdicts and labels as a data set", "export"),
    "search": Command("worker.base.lookup.search", "Find verdicts by judge, service, outcome, text"),
    "show": Command("worker.base.lookup.show", "Print a trace with its verdicts, sentences and evidence"),
    "tail": Command("worker.base.lookup.tail", "Follow verdicts live"),
}
FEATURE: Final = Feature(
    name="lookup", tables=(KEEP_LABELLED, MAX_LABELLED_BYTES), keys=LookupKeys, scripts=__package__, commands=_COMMANDS
)
