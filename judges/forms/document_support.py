"""The RAGBench form: relevant document sentences, support of the answer and its parts, and utilized sentences.

Both RAGBench judges answer with one object of six keys, which differ in the entries on single sentences. ``read``
checks the form, ``measure`` drops keys that do not exist and computes the metrics (TRACe).
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from judges.core.judge import Metric
from judges.core.prompt import MATERIAL_RULES, OBJECT_RULES
from judges.core.verdict import Score
from judges.forms.keyed_sentences import Keyed, Near, Overlap, verdict
from judges.parsing.answer import InvalidAnswerError, object_schema, read_object, text_field, text_list, truth
from tracejudge import Trace

EntryT = TypeVar("EntryT")
_ENTRIES: Final = "sentence_support_information"
_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_TRUTH: Final = {"type": "boolean"}
_KEYS: Final[Mapping[str, object]] = {
    "relevance_explanation": _TEXT,
    "all_relevant_sentence_keys": _TEXTS,
    "overall_supported_explanation": _TEXT,
    "overall_supported": _TRUTH,
    _ENTRIES: None,
    "all_utilized_sentence_keys": _TEXTS,
}
_ENTRY_TYPES: Final[Mapping[str, object]] = {
    "response_sentence_key": _TEXT,
    "sentence_key": _TEXT,
    "is_supported": _TRUTH,
    "explanation": _TEXT,
    "supporting_sentence_keys": _TEXTS,
    "fully_supported": _TRUTH,
}
METRICS: Final = (
    Metric("relevance", "0..1", None, descriptive=True),
    Metric("utilization", "0..1", None, descriptive=True),
    Metric("completeness", "0..1", None),
    Metric("adherence", "0 or 1", "supported"),
)
# Scripts without blanks between words: one character is closer to a token than a whole sentence.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_WORD: Final = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


class Support(NamedTuple, Generic[EntryT]):
    """One answer of a valid form, with keys as the model wrote them."""

    relevance_explanation: str
    relevant: tuple[str, ...]
    explanation: str
    supported: bool
    entries: tuple[EntryT, ...]
    utilized: tuple[str, ...]


class Measured(NamedTuple):
    """The metrics of an answer, and the data they are computed from."""

    scores: tuple[Score, ...]  # The four scores.
    relevant: list[str]  # Existing relevant keys, in document order.
    utilized: list[str]  # Existing utilized keys, in document order.
    unknown: int  # Number of keys in both lists that do not exist.


def schema(entry_keys: Sequence[str]) -> Mapping[str, object]:
    """Build the schema of an answer whose entries have these keys."""
    entries = {"type": "array", "items": object_schema({key: _ENTRY_TYPES[key] for key in entry_keys})}
    return object_schema({**_KEYS, _ENTRIES: entries})


def fixed_part(role: str, criterion: str, form: str) -> str:
    """Join role and criterion with the rules for the material and the form of the answer."""
    answering = f"How to answer\n{OBJECT_RULES} The object has these six keys, in this order:\n{form}"
    return f"{role}\n\n{criterion}\n\n{MATERIAL_RULES}\n\n{answering}"


def read(text: str, entry_keys: Sequence[str], read_entry: Callable[[Mapping[str, object]], EntryT]) -> Support[EntryT]:
    """Parse an answer and its entries, without a check whether keys exist; raises ``InvalidAnswerError``.

    ``read_entry`` parses the scored part of an entry that has ``entry_keys``; its explanation is not kept.
    """
    answer = read_object(text, tuple(_KEYS))
    relevance_explanation = text_field(answer, "relevance_explanation")
    relevant = text_list(answer, "all_relevant_sentence_keys")
    explanation = text_field(answer, "overall_supported_explanation")
    supported = truth(answer, "overall_supported")
    found = answer[_ENTRIES]
    if not isinstance(found, list):
        raise InvalidAnswerError(f"`{_ENTRIES}` is not a list")
    entries = []
    for number, entry in enumerate(found, 1):
        if not isinstance(entry, dict) or not entry.keys() >= set(entry_keys):
            keys = ", ".join(entry_keys)
            raise InvalidAnswerError(f"entry {number} of `{_ENTRIES}` is no object with the keys {keys}")
        try:
            text_field(entry, "explanation")
            entries.append(read_entry(entry))
        except InvalidAnswerError as error:
            raise InvalidAnswerError(f"entry {number} of `{_ENTRIES}`: {error}") from error
    utilized = text_list(answer, "all_utilized_sentence_keys")
    return Support(relevance_explanation, relevant, explanation, supported, tuple(entries), utilized)


def measure(answer: Support[EntryT], documents: Keyed, *, lengths: bool) -> Measured:
    """Compute the four metrics from the keys of the shown sentences; with ``lengths``, shares count words."""
    relevant, utilized = documents.sift(answer.relevant), documents.sift(answer.utilized)
    found = shares(weights(documents.sentences, lengths=lengths), relevant.keys, utilized.keys)
    return Measured(
        scores(found, answer.relevance_explanation, supported=answer.supported),
        documents.ordered(relevant.keys),
        documents.ordered(utilized.keys),
        relevant.unknown + utilized.unknown,
    )


class Shares(NamedTuple):
    """The three metrics that are shares of document sentences, each 0..1."""

    relevance: float
    utilization: float
    completeness: float


def weights(sentences: Mapping[str, str], *, lengths: bool) -> Mapping[str, int]:
    """Return the weight of each sentence by key: 1, or with ``lengths`` its number of words.

    Blanks delimit words. In scripts without blanks (Han, kana, Thai, Lao, Khmer, Burmese) each character is a word.
    """
    if not lengths:
        return dict.fromkeys(sentences, 1)
    return {
        key: len(sentence.split()) if sentence.isascii() else len(_WORD.findall(sentence))
        for key, sentence in sentences.items()
    }


def shares(weight_of: Mapping[str, int], relevant: Collection[str], utilized: Collection[str]) -> Shares:
    """Compute relevance, utilization and completeness from the weights of all, relevant and utilized sentences."""
    known, used = set(relevant), set(utilized)
    total = sum(weight_of.values()) or 1
    useful = sum(weight_of[key] for key in known)
    return Shares(
        relevance=useful / total,
        utilization=sum(weight_of[key] for key in used) / total,
        completeness=sum(weight_of[key] for key in known & used) / useful if useful else 1.0,
    )


def scores(found: Shares, relevance_explanation: str, *, supported: bool) -> tuple[Score, ...]:
    """Return the scores of the four metrics; only adherence passes or fails."""
    label = "supported" if supported else "unsupported"
    return (
        Score("relevance", found.relevance, found.relevance, rationale=relevance_explanation),
        Score("utilization", found.utilization, found.utilization),
        Score("completeness", found.completeness, found.completeness),
        Score("adherence", float(supported), float(supported), label, supported),
    )


def guess(
    trace: Trace,
    documents: Keyed,
    answer: Mapping[str, str],
    judged: Callable[[Overlap, Mapping[str, Near], Sequence[str]], tuple[object, object]],
) -> Mapping[str, object]:
    """Answer by word overlap, as the lexical model.

    ``judged`` returns the entries and utilized keys, from the overlap, the nearest sentences to each sentence of the
    answer and the relevant keys.
    """
    overlap = Overlap(documents.sentences)
    near = overlap.nearest(answer)
    relevant, relevance_explanation = overlap.relevant(trace.input or "")
    supported, explanation = verdict(near, len(answer))
    entries, utilized = judged(overlap, near, relevant)
    values = (relevance_explanation, relevant, explanation, supported, entries, utilized)
    return dict(zip(_KEYS, values, strict=True))
