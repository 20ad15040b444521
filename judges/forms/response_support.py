"""What documents lend to each sentence of an answer: the entries of ``ragbench``, and the check of their evidence."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from judges.answer import text_field, text_list, truth
from judges.forms.keyed import Keyed

__all__ = ["ENTRY_KEYS", "SPECIAL_WORDS", "Checked", "Entries", "Entry", "check", "read_entry"]

ENTRY_KEYS: Final = ("response_sentence_key", "explanation", "supporting_sentence_keys", "fully_supported")
SPECIAL_WORDS: Final = frozenset({"supported_without_sentence", "general", "well_known_fact", "numerical_reasoning"})
"""May stand in place of keys, and are exempt from the check."""


class Entry(NamedTuple):
    """What the model said of one sentence of the answer."""

    key: str
    supporting: tuple[str, ...]
    fully_supported: bool


class Checked(NamedTuple):
    """An entry after the check.

    Attributes:
        supporting: The keys that exist, and special words.
        said: Whether the model called the sentence fully supported, and named anything for it.
        holds: The same, with something left of what it named.
        unknown: How many of the keys it named do not exist.
        unfounded: Whether it called the sentence fully supported, and named nothing.
    """

    key: str
    supporting: tuple[str, ...]
    said: bool
    holds: bool
    unknown: int
    unfounded: bool


class Entries(NamedTuple):
    """The entries of an answer after the check, in the order of its sentences.

    Attributes:
        missing: How many sentences have no entry.
        repeated: How many entries came before another one on the same sentence.
        astray: How many entries are on a sentence that does not exist.
    """

    checked: tuple[Checked, ...]
    missing: int
    repeated: int
    astray: int

    def hold(self) -> bool:
        """Tell whether every sentence has an entry, and evidence for all it says."""
        return not self.missing and all(entry.holds for entry in self.checked)

    def contradictions(self, *, supported: bool) -> int:
        """Count what speaks against the model's own verdict on the whole, before the check of the evidence.

        With a supported whole these are the sentences called unsupported; with an unsupported one it is 1 when every
        sentence was called fully supported.
        """
        against = sum(not entry.said for entry in self.checked)
        if supported:
            return against
        return int(not against and not self.missing)

    def details(self) -> Mapping[str, object]:
        """Lay the sentences and the counts out for a verdict; keys only, no texts."""
        return {
            "sentence_support": [
                {
                    "response_sentence_key": entry.key,
                    "supporting_sentence_keys": list(entry.supporting),
                    "fully_supported": entry.holds,
                }
                for entry in self.checked
            ],
            "supported_by_nothing": sum(entry.unfounded for entry in self.checked),
            "missing_entries": self.missing,
            "repeated_entries": self.repeated,
            "unknown_entries": self.astray,
        }


def read_entry(found: Mapping[str, object]) -> Entry:
    """Read one entry that has all its keys.

    Raises:
        InvalidAnswerError: A value has another type.
    """
    return Entry(
        text_field(found, "response_sentence_key"),
        text_list(found, "supporting_sentence_keys"),
        truth(found, "fully_supported"),
    )


def check(entries: Sequence[Entry], answer: Keyed, documents: Keyed) -> Entries:
    """Keep of each entry the evidence that exists. Of several on one sentence the last one counts, as with answers."""
    last: dict[str, Entry] = {}
    repeated = astray = 0
    for entry in entries:
        key = answer.find(entry.key)
        if key is None:
            astray += 1
            continue
        repeated += key in last
        last[key] = entry
    checked = tuple(_checked(key, last[key], documents) for key in answer.ordered(last))
    return Entries(checked, len(answer.sentences) - len(checked), repeated, astray)


def _checked(key: str, entry: Entry, documents: Keyed) -> Checked:
    kept, unknown = documents.sift(entry.supporting, besides=SPECIAL_WORDS)
    said = entry.fully_supported and bool(entry.supporting)
    return Checked(
        key,
        supporting=kept,
        said=said,
        holds=said and bool(kept),
        unknown=unknown,
        unfounded=entry.fully_supported and not entry.supporting,
    )
