"""The answer object of the two RAGBench judges: relevant sentences, support of the whole and its parts, used sentences.

``read`` checks the form, ``measure`` leaves out the keys that do not exist and computes the metrics.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from judges.answer import InvalidAnswerError, read_object, text_field, text_list, truth
from judges.forms import trace_scores
from judges.forms.keyed import Keyed
from judges.prompt import MATERIAL_RULES, OBJECT_RULES
from judges.verdict import Score

__all__ = ["Measured", "Support", "fixed_part", "measure", "read", "schema"]

Entry = TypeVar("Entry")

_ENTRIES: Final = "sentence_support_information"
_KEYS: Final = (
    "relevance_explanation",
    "all_relevant_sentence_keys",
    "overall_supported_explanation",
    "overall_supported",
    _ENTRIES,
    "all_utilized_sentence_keys",
)
_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_TRUTH: Final = {"type": "boolean"}
_TYPES: Final[Mapping[str, Mapping[str, object]]] = {
    "relevance_explanation": _TEXT,
    "all_relevant_sentence_keys": _TEXTS,
    "overall_supported_explanation": _TEXT,
    "overall_supported": _TRUTH,
    "all_utilized_sentence_keys": _TEXTS,
    "response_sentence_key": _TEXT,
    "sentence_key": _TEXT,
    "is_supported": _TRUTH,
    "explanation": _TEXT,
    "supporting_sentence_keys": _TEXTS,
    "fully_supported": _TRUTH,
}


class Support(NamedTuple, Generic[Entry]):
    """One answer, its form checked and its keys as the model wrote them."""

    relevance_explanation: str
    relevant: tuple[str, ...]
    explanation: str
    supported: bool
    entries: tuple[Entry, ...]
    utilized: tuple[str, ...]


class Measured(NamedTuple):
    """The metrics of an answer, with what they were computed from.

    Attributes:
        relevant: Existing relevant keys, in the order of the sentences.
        utilized: Existing utilized keys, in the same order.
        unknown: How many keys of both lists do not exist.
    """

    scores: tuple[Score, ...]
    relevant: list[str]
    utilized: list[str]
    unknown: int


def schema(entry_keys: Sequence[str]) -> Mapping[str, object]:
    """Build the schema of an answer whose entries have these keys."""
    entries = {"type": "array", "items": _object({key: _TYPES[key] for key in entry_keys})}
    return _object({key: entries if key == _ENTRIES else _TYPES[key] for key in _KEYS})


def fixed_part(role: str, criterion: str, form: str) -> str:
    """Put a fixed part together: who the model is, what it decides by, how the material and the answer look."""
    answering = f"How to answer\n{OBJECT_RULES} The object has these six keys, in this order:\n{form}"
    return f"{role}\n\n{criterion}\n\n{MATERIAL_RULES}\n\n{answering}"


def read(text: str, entry_keys: Sequence[str], read_entry: Callable[[Mapping[str, object]], Entry]) -> Support[Entry]:
    """Read an answer. Whether its keys exist is not looked at here.

    Args:
        text: What the model answered.
        entry_keys: The keys each entry must have.
        read_entry: Takes what is scored from an entry that has them; its explanation is a text and is not kept.

    Raises:
        InvalidAnswerError: The text is no such answer.
    """
    answer = read_object(text, _KEYS)
    return Support(
        text_field(answer, "relevance_explanation"),
        text_list(answer, "all_relevant_sentence_keys"),
        text_field(answer, "overall_supported_explanation"),
        truth(answer, "overall_supported"),
        _entries(answer[_ENTRIES], entry_keys, read_entry),
        text_list(answer, "all_utilized_sentence_keys"),
    )


def measure(answer: Support[Entry], documents: Keyed, *, lengths: bool) -> Measured:
    """Compute the four metrics from the keys that exist.

    Args:
        answer: What the model answered.
        documents: The document sentences it was shown.
        lengths: Whether the shares count words instead of sentences.
    """
    relevant, utilized = documents.sift(answer.relevant), documents.sift(answer.utilized)
    weights = trace_scores.weights(documents.sentences, lengths=lengths)
    shares = trace_scores.shares(weights, relevant.keys, utilized.keys)
    return Measured(
        trace_scores.scores(shares, answer.relevance_explanation, supported=answer.supported),
        documents.ordered(relevant.keys),
        documents.ordered(utilized.keys),
        relevant.unknown + utilized.unknown,
    )


def _entries(
    found: object, keys: Sequence[str], read_entry: Callable[[Mapping[str, object]], Entry]
) -> tuple[Entry, ...]:
    if not isinstance(found, list):
        raise InvalidAnswerError(f"`{_ENTRIES}` is not a list")
    wanted = frozenset(keys)
    entries = []
    for number, entry in enumerate(found, 1):
        if not isinstance(entry, dict) or not entry.keys() >= wanted:
            raise InvalidAnswerError(f"entry {number} of `{_ENTRIES}` is no object with the keys {', '.join(keys)}")
        if not isinstance(entry["explanation"], str):
            raise InvalidAnswerError(f"entry {number} of `{_ENTRIES}`: `explanation` is not a text")
        try:
            entries.append(read_entry(entry))
        except InvalidAnswerError as error:
            raise InvalidAnswerError(f"entry {number} of `{_ENTRIES}`: {error}") from error
    return tuple(entries)


def _object(properties: Mapping[str, object]) -> Mapping[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
