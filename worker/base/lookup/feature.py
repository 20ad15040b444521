"""Look-ups: verdicts, traces and human labels that are stored."""

from typing import Final

from worker.core.features import Feature
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


FEATURE: Final = Feature(name="lookup", keys=LookupKeys, scripts=__package__)
