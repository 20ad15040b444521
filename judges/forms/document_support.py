"""The RAGBench form: relevant document sentences, support of the answer and its parts, and utilized sentences.

Both RAGBench judges answer with one object of six keys, which differ in the entries on single sentences. ``read``
checks the form, ``measure`` drops keys that do not exist and computes the metrics (TRACe).
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Final, Generic, NamedTuple, TypeVar

from msgspec import Meta, Struct, structs

from judges.core.decision import Calibration, Question
from judges.core.judge import MIN_OUTPUT_TOKENS, AnsweredPrompt, DecisionForm, Metric, Reading
from judges.core.prompt import MATERIAL_RULES, OBJECT_RULES, Block, Prompt, history_rules
from judges.core.verdict import Score
from judges.forms import typed_questions
from judges.forms.keyed_sentences import Keyed, Near, Overlap, Sifted, verdict
from judges.parsing.answer import (
    InvalidAnswerError,
    encodable,
    entry_list,
    object_schema,
    reasons_field,
    text_list,
    truth,
)
from judges.parsing.objects import read_object
from judges.parsing.sentences import SPLITTER
from tracejudge import Trace

EntryT = TypeVar("EntryT")
_ENTRIES: Final = "sentence_support_information"
_RELEVANT: Final = "all_relevant_sentence_keys"
_UTILIZED: Final = "all_utilized_sentence_keys"
_TEXT: Final = {"type": "string"}
_TRUTH: Final = {"type": "boolean"}
_DECIDING: Final = ("all_relevant_sentence_keys", "overall_supported", "all_utilized_sentence_keys")
_KEYS: Final = (
    "relevance_explanation",
    _RELEVANT,
    "overall_supported_explanation",
    "overall_supported",
    _ENTRIES,
    _UTILIZED,
)
# Tokens of one entry, up to 70 in the corpus of answers, and of the two explanations, which grow with the documents.
_ENTRY_TOKENS: Final = 120
_EXPLANATION_TOKENS: Final = 800
_KEY_TOKENS: Final = 8
_MAX_ENUM: Final = 300  # Endpoints limit the values of all enumerations of a schema, most to 1,000.
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


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of both judges.

    Attributes:
        lengths: Whether the shares count the words of sentences instead of the sentences.
        empty_completeness: The completeness of an answer for which no document sentence is relevant. It has none unless
            this is set; the published data set has 1.0.
        enum_keys: Whether the schema of each request lists the keys of its trace. Many endpoints compile every new
            schema, which takes seconds; by default the schema describes the form of keys and never changes.
        score_cut: Whether a trace is judged when documents are left out to fit the model's context.
    """

    lengths: bool = False
    empty_completeness: Annotated[float, Meta(ge=0, le=1)] | None = None
    enum_keys: bool = False
    score_cut: bool = False


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

    scores: tuple[Score, ...]  # The four scores, without completeness if it is undefined.
    relevant: list[str]  # Existing relevant keys, in document order.
    utilized: list[str]  # Existing utilized keys, in document order.
    unknown: int  # Number of keys in both lists that do not exist.


def keys_like(pattern: str) -> Mapping[str, object]:
    """Build the schema of a key of this form, the same for every trace: endpoints compile each schema they are sent."""
    return {"type": "string", "pattern": f"^({pattern})$"}


def keys_of(sentences: Collection[str], pattern: str, words: Collection[str] = ()) -> Mapping[str, object]:
    """Build the schema of a key that is one of those shown, or has the form of one if there are too many."""
    if len(sentences) > _MAX_ENUM:
        return keys_like(pattern)
    return {"type": "string", "enum": [*sentences, *sorted(words)]}


def schema(key: Mapping[str, object], entry: Mapping[str, object]) -> Mapping[str, object]:
    """Build the schema of an answer with this schema of a key, and of the keys of an entry."""
    types: Mapping[str, object] = {"explanation": _TEXT, "is_supported": _TRUTH, "fully_supported": _TRUTH}
    entries = object_schema({name: types.get(name, each) for name, each in entry.items()})
    keys = {"type": "array", "items": key}
    values = (_TEXT, keys, _TEXT, _TRUTH, {"type": "array", "items": entries}, keys)
    return object_schema(dict(zip(_KEYS, values, strict=True)))


def output_tokens(entries: int, keys: int) -> int:
    """Bound an answer by the number of entries and of document sentences that it can name."""
    return MIN_OUTPUT_TOKENS + _EXPLANATION_TOKENS + _ENTRY_TOKENS * entries + 2 * _KEY_TOKENS * keys


def fixed_part(role: str, criterion: str, form: str) -> str:
    """Join role and criterion with the rules for the material and the form of the answer."""
    return f"{role}\n\n{criterion}\n\n{history_rules()}\n\n{MATERIAL_RULES}\n\n{answering(form)}"


def answering(form: str) -> str:
    """Build the request for an answer of a form."""
    return f"How to answer\n{OBJECT_RULES} The object has these six keys, in this order:\n{form}"


def read(text: str, entry_keys: Sequence[str], read_entry: Callable[[Mapping[str, object]], EntryT]) -> Support[EntryT]:
    """Parse an answer and its entries with ``entry_keys``, or raise ``InvalidAnswerError``."""
    answer = read_object(text, _KEYS, deciding=_DECIDING, entry_keys=entry_keys)
    relevance_explanation = reasons_field(answer, "relevance_explanation")
    relevant = key_list(answer, _RELEVANT)
    explanation = reasons_field(answer, "overall_supported_explanation")
    supported = truth(answer, "overall_supported")
    entries = entry_list(answer, _ENTRIES, entry_keys, read_entry)
    utilized = key_list(answer, _UTILIZED)
    return Support(relevance_explanation, relevant, explanation, supported, entries, utilized)


def key_list(answer: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return a list of keys, which may be one text; raises ``InvalidAnswerError`` for another type."""
    value = answer[key]
    return (encodable(value),) if isinstance(value, str) else text_list(answer, key)


def check_keys(answer: Support[EntryT], documents: Keyed, **entries: Sifted) -> None:
    """Raise ``InvalidAnswerError`` if a list, or all entries' lists of one name, have keys of which none exists."""
    lists = {_RELEVANT: documents.sift(answer.relevant), _UTILIZED: documents.sift(answer.utilized), **entries}
    for name, sifted in lists.items():
        if sifted.is_lost:
            raise InvalidAnswerError(f"`{name}` names keys, and none of them is a key of the material")


def measure(
    answer: Support[EntryT], documents: Keyed, *, lengths: bool, empty_completeness: float | None = None
) -> Measured:
    """Compute the four metrics from keys of shown sentences; ``empty_completeness`` is without relevant ones."""
    relevant, utilized = documents.sift(answer.relevant), documents.sift(answer.utilized)
    ratios = shares(weights(documents.sentences, lengths=lengths), relevant.keys, utilized.keys)
    if ratios.completeness is None:
        ratios = ratios._replace(completeness=empty_completeness)
    return Measured(
        scores(ratios, answer.relevance_explanation, supported=answer.supported),
        documents.ordered(relevant.keys),
        documents.ordered(utilized.keys),
        relevant.unknown + utilized.unknown,
    )


class Shares(NamedTuple):
    """The three metrics that are shares of document sentences, each 0..1."""

    relevance: float
    utilization: float
    completeness: float | None  # None if no sentence is relevant: the share of nothing is undefined.


def weights(sentences: Mapping[str, str], *, lengths: bool) -> Mapping[str, int]:
    """Return the weight of each sentence by key: 1, or with ``lengths`` its number of words."""
    # Blanks delimit words. In scripts without blanks (Han, kana, Thai, Lao, Khmer, Burmese) each character is a word.
    if not lengths:
        return dict.fromkeys(sentences, 1)
    return {
        key: len(sentence.split()) if sentence.isascii() else len(_WORD.findall(sentence))
        for key, sentence in sentences.items()
    }


def shares(weight_of: Mapping[str, int], relevant: Collection[str], utilized: Collection[str]) -> Shares:
    """Compute relevance, utilization and completeness from the weights of all, relevant and utilized sentences."""
    relevant_keys, used = set(relevant), set(utilized)
    total = sum(weight_of.values()) or 1
    useful = sum(weight_of[key] for key in relevant_keys)
    return Shares(
        relevance=useful / total,
        utilization=sum(weight_of[key] for key in used) / total,
        completeness=sum(weight_of[key] for key in relevant_keys & used) / useful if useful else None,
    )


def scores(ratios: Shares, relevance_explanation: str | None, *, supported: bool) -> tuple[Score, ...]:
    """Return the scores of the four metrics; only adherence passes or fails."""
    label = "supported" if supported else "unsupported"
    return (
        Score("relevance", ratios.relevance, ratios.relevance, rationale=relevance_explanation),
        Score("utilization", ratios.utilization, ratios.utilization),
        *(() if ratios.completeness is None else (Score("completeness", ratios.completeness, ratios.completeness),)),
        Score("adherence", float(supported), float(supported), label, supported),
    )


ADHERENCE: Final = """\
Every claim of the part `answer` is supported by the part `documents`, be it by several sentences together. One claim \
that goes beyond the documents or contradicts them makes this false."""
_STATEMENTS: Final = (
    "Sentence {key} of the part `documents` is relevant.",
    "Sentence {key} of the part `documents` is used.",
)
_HALF: Final = 0.5


def decision_form(
    name: str,
    definitions: str,
    shown: Callable[[Trace], tuple[tuple[Block, ...], Keyed]],
    *,
    lengths: bool,
    empty_completeness: float | None,
) -> DecisionForm:
    """Build the form of typed questions: a predicate on the whole answer, then two for each document sentence.

    Args:
        definitions: When a sentence is relevant, and when it is used.
        shown: Returns the material, and the document sentences in it by their keys.
        lengths: Whether shares count words.
        empty_completeness: The completeness if no sentence is relevant; None: it has none.
    """
    fixed = f"{typed_questions.fixed_part(history=True)}\n\n{definitions}"

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        blocks, documents = shown(trace)
        texts = (statement.format(key=key) for key in documents.sentences for statement in _STATEMENTS)
        questions = [Question("predicate", text) for text in (ADHERENCE, *texts)]
        return typed_questions.requests(Prompt(fixed, blocks, documents), questions)

    def score(_trace: Trace, answered: Sequence[AnsweredPrompt], calibrations: Mapping[str, Calibration]) -> Reading:
        documents: Keyed = answered[0].prompt.about
        whole, *rest = (answer.probability for answer in typed_questions.joined(answered))
        keys = tuple(documents.sentences)
        relevant, utilized = (
            [key for key, probability in zip(keys, rest[start::2], strict=True) if probability >= _HALF]
            for start in (0, 1)
        )
        ratios = shares(weights(documents.sentences, lengths=lengths), relevant, utilized)
        if ratios.completeness is None:
            ratios = ratios._replace(completeness=empty_completeness)
        probability, passed = typed_questions.corrected("adherence", whole, calibrations)
        *first_three, adherence = scores(ratios, None, supported=passed)
        details = {
            "document_sentences": len(keys),
            "relevant": relevant,
            "utilized": utilized,
            "completeness_undefined": int(not relevant),
            **typed_questions.details({"adherence": whole}, calibrations),
        }
        return Reading((*first_three, structs.replace(adherence, probability=probability)), details=details)

    return DecisionForm(prompts, (fixed, ADHERENCE, *_STATEMENTS), score, f"{name}, decisions/1, {SPLITTER}")


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
