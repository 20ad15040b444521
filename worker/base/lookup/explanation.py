"""The parts of a verdict on each sentence of the answer, with the places of its evidence in the documents.

Judges differ in what they return: labelled sentences with an excerpt, keys of sentences, or results by document. This
module reads the details of a verdict into one form, for `tracejudge show` and the board. Nothing is judged again: an
excerpt is only looked up if the verdict does not say whether it was found.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from judges.catalog.ragbench import SPECIAL_WORDS, Shown
from judges.core.judge import Judge
from judges.core.prompt import texts_of
from judges.core.verdict import Verdict
from judges.forms.keyed_sentences import Keyed
from judges.parsing.evidence import Source
from judges.parsing.sentences import split
from tracejudge import Trace

Letter = Literal["S", "U", "C", "N"]
OUTCOMES: Final[Mapping[Letter, str]] = {
    "S": "supported",
    "U": "unsupported",
    "C": "contradictory",
    "N": "needs no support",
}
_LETTERS: Final[Mapping[str, Letter]] = {"supported": "S", "no_rad": "N", "contradictory": "C"}
_GAP: Final = re.compile(r"\s*(?:\[?\(?(?:\.\.\.+|\u2026)\)?\]?|\n)\s*")
_SUPPORT: Final = "sentence_support"
# In the words of the built-in model only: how another model counts sentences is not known.
_NUMBERED: Final = re.compile(
    r"(?:Only \d+% of the words of s|S)entence (\d+) "
    r"(?:appear in the document|contains a number that the document does not)\."
)
_QUOTED: Final = re.compile(r"\"([^\"]{3,})\"|\u201c([^\u201c\u201d]{3,})\u201d|\xab([^\xab\xbb]{3,})\xbb|`([^`]{3,})`")
_MAX_WORDS: Final = 400
_MAX_QUOTES: Final = 20
# Searching without regard to blanks and case costs a hundred times as much: a page must not take seconds.
_MAX_SEARCHED_CHARS: Final = 200_000
# The next sentence of a document begins within so many characters behind the last, in one of so many documents.
_AHEAD_CHARS: Final = 10_000


class Place(NamedTuple):
    """A part of a text: of the document with this index from 0, or of the answer (-1), in characters."""

    document: int
    start: int
    end: int


class Evidence(NamedTuple):
    """The evidence of a sentence, as a judge names it."""

    text: str  # The excerpt, or the sentence of a document.
    found: bool  # Whether it is in the documents.
    places: tuple[Place, ...] = ()  # Where, as far as its parts can be located; an excerpt may be joined from several.
    looked_up: bool = False  # Whether the passage was looked up by common words, because the model names none.


class Sentence(NamedTuple):
    """A sentence of the answer with its outcome, its place in the answer, and its evidence."""

    text: str
    letter: Letter
    place: Place | None = None
    evidence: tuple[Evidence, ...] = ()
    note: str = ""
    number: int | None = None  # In the answer, from 1; None where the judge gives all sentences in order.


class DocumentSentence(NamedTuple):
    """A sentence of a document that is relevant to the question, or used by the answer."""

    text: str
    relevant: bool
    used: bool
    place: Place | None
    note: str = ""


class DocumentResult(NamedTuple):
    """The result of one document by its rank from 1; None if the model did not know."""

    rank: int
    passed: bool | None
    rationale: str
    span: str = ""


class Explanation(NamedTuple):
    """A verdict's statements on the parts of its trace; empty for judges that judge the whole only."""

    sentences: tuple[Sentence, ...] = ()
    document_sentences: tuple[DocumentSentence, ...] = ()
    documents: tuple[DocumentResult, ...] = ()
    quotes: tuple[Place, ...] = ()  # Words that the rationale quotes, where they are in the answer and the documents.
    # Whether the installed judge has the version of the verdict, because another may cut sentences otherwise.
    same_version: bool = True


def explain(verdict: Verdict, trace: Trace, judge: Judge | None) -> Explanation:
    """Explain a verdict by the installed judge, in the form for its judge model; None if there is no such judge."""
    details, texts = verdict.details, texts_of(trace.context)
    labelled = _entries(details, "sentences")
    keyed = _find_keyed(judge, trace) if "relevant" in details or "utilized" in details else None
    sentences: list[Sentence] = []
    if labelled:
        sentences = _read_labelled(labelled, trace.output, texts)
    elif keyed is not None and keyed.answer is not None:
        sentences = _read_keyed(_entries(details, _SUPPORT), keyed, trace.output, texts)
    elif named := _NUMBERED.fullmatch(verdict.rationale or ""):
        number = int(named[1])
        shown = split(trace.output)[number - 1 :][:1]
        sentences = [Sentence(text, "U", place(text, trace.output, -1), note=named[0], number=number) for text in shown]
    return Explanation(
        tuple(sentences),
        () if keyed is None else tuple(_mark_documents(details, keyed.documents, texts)),
        tuple(_document_results(details)),
        () if sentences else tuple(_find_quotes(verdict, (trace.output, *texts))),
        judge is not None and judge.version == verdict.judge_version,
    )


def place(text: str, within: str, document: int, start: int = 0, end: int | None = None) -> Place | None:
    """Find a text in another, without regard to blanks and case; None if it is not there as a whole."""
    end = len(within) if end is None else end
    at = within.find(text, start, end)
    if text and at >= 0:
        return Place(document, at, at + len(text))
    words = text.split()
    if not 0 < len(words) <= _MAX_WORDS or end - start > _MAX_SEARCHED_CHARS:
        return None
    match = re.compile(r"\s+".join(map(re.escape, words)), re.IGNORECASE).search(within, start, end)
    return None if match is None else Place(document, *match.span())


def as_text(value: object) -> str:
    """Return a value of a trace as text: a text as it is, any other as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _find_quotes(verdict: Verdict, texts: Sequence[str]) -> Iterable[Place]:
    reasons = "\n".join(filter(None, (verdict.rationale, *(score.rationale for score in verdict.scores))))
    for match in itertools.islice(_QUOTED.finditer(reasons), _MAX_QUOTES):
        for index, text in enumerate(texts, -1):
            if (at := place(match[match.lastindex or 0], text, index)) is not None:
                yield at


class _Sentences(NamedTuple):
    """The sentences that a judge has shown with their keys; no answer if it shows the answer as a text."""

    documents: Keyed
    answer: Keyed | None


def _find_keyed(judge: Judge | None, trace: Trace) -> _Sentences | None:
    if judge is None:
        return None
    about = judge.prompts(judge.prepare(trace))[0].about
    if isinstance(about, Shown):
        return _Sentences(*about)
    return _Sentences(about, None) if isinstance(about, Keyed) else None


def _entries(details: Mapping[str, object], name: str) -> list[Mapping[str, Any]]:
    """Return a list of objects in the details; other versions of a judge may have written anything."""
    entries = details.get(name)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list | tuple) else []


def _read_labelled(entries: Iterable[Mapping[str, Any]], answer: str, texts: Sequence[str]) -> list[Sentence]:
    source, sentences, position = Source(texts), list[Sentence](), 0
    for entry in entries:
        text, label = str(entry.get("sentence", "")), str(entry.get("label", ""))
        at = place(text, answer, -1, position)
        position = position if at is None else at.end
        evidence: tuple[Evidence, ...] = ()
        excerpt, passage = entry.get("excerpt"), entry.get("passage")
        if isinstance(excerpt, str) and excerpt:
            holds = entry.get("excerpt_found")
            in_documents = source.holds(excerpt) if holds is None else holds is True
            evidence = (Evidence(excerpt, in_documents, _places(excerpt, texts) if in_documents else ()),)
        elif isinstance(passage, str):
            evidence = (Evidence(passage, found=True, places=_places(passage, texts), looked_up=True),)
        sentences.append(Sentence(text, _LETTERS.get(label, "U"), at, evidence, str(entry.get("rationale") or "")))
    return sentences


def _read_keyed(
    entries: Iterable[Mapping[str, Any]], keyed: _Sentences, answer: str, texts: Sequence[str]
) -> list[Sentence]:
    by_key = {str(entry.get("response_sentence_key")): entry for entry in entries}
    places = _locate_in_order(keyed.documents.sentences, texts)
    sentences, position = list[Sentence](), 0
    for key, text in ({} if keyed.answer is None else keyed.answer.sentences).items():
        at = place(text, answer, -1, position)
        position = position if at is None else at.end
        entry = by_key.get(key)
        if entry is None:
            sentences.append(Sentence(text, "U", at, note="the judge did not name it"))
            continue
        supporting = [str(name) for name in entry.get("supporting_sentence_keys", ())]
        words = [name for name in supporting if name in SPECIAL_WORDS]
        documents = keyed.documents.sentences
        evidence = tuple(
            Evidence(documents[name], found=True, places=() if (there := places[name]) is None else (there,))
            for name in supporting
            if name in documents
        )
        letter: Letter = "S" if entry.get("fully_supported") is True else "U"
        notes = (*(word.replace("_", " ") for word in words), entry.get("explanation"))
        sentences.append(Sentence(text, letter, at, evidence, ", ".join(map(str, filter(None, notes)))))
    return sentences


def _mark_documents(
    details: Mapping[str, object], documents: Keyed, texts: Sequence[str]
) -> Iterable[DocumentSentence]:
    relevant, used = (
        set(map(str, keys)) if isinstance(keys := details.get(name), list | tuple) else set()
        for name in ("relevant", "utilized")
    )
    places = _locate_in_order(documents.sentences, texts)
    by_key = {str(row.get("sentence_key")): str(row.get("explanation") or "") for row in _entries(details, _SUPPORT)}
    for key, text in documents.sentences.items():
        if key in relevant or key in used:
            yield DocumentSentence(text, key in relevant, key in used, places[key], by_key.get(key, ""))


def _document_results(details: Mapping[str, object]) -> Iterable[DocumentResult]:
    groups = [("", _entries(details, "documents"))]
    groups += [(str(span.get("name") or ""), _entries(span, "documents")) for span in _entries(details, "spans")]
    for span, entries in groups:
        for entry in entries:
            value = entry.get("retrieval_relevance", entry.get("passed"))
            rank = entry.get("rank")
            passed = None if value is None else bool(value)
            yield DocumentResult(rank if isinstance(rank, int) else 0, passed, str(entry.get("rationale") or ""), span)


def _locate_in_order(sentences: Mapping[str, str], texts: Sequence[str]) -> dict[str, Place | None]:
    """Locate the sentences of documents, which come in the order of the documents."""
    places: dict[str, Place | None] = {}
    written = [index for index, text in enumerate(texts) if text.strip()]
    nth, position = 0, 0
    for key, text in sentences.items():
        # A row of a table is shown in another form than it has in the text, and is not found.
        places[key] = None
        for ahead, index in enumerate(written[nth : nth + 3]):
            start = 0 if ahead else position
            at = place(text, texts[index], index, start, start + len(text) + _AHEAD_CHARS)
            if at is not None:
                nth, position, places[key] = nth + ahead, at.end, at
                break
    return places


def _places(excerpt: str, texts: Sequence[str]) -> tuple[Place, ...]:
    """Locate an excerpt, or its parts if it was joined from several."""
    places: list[Place] = []
    for parts in ([excerpt], [part for part in _GAP.split(excerpt) if part]):
        located = (
            next((at for index, text in enumerate(texts) if (at := place(part, text, index)) is not None), None)
            for part in parts
        )
        places = [at for at in located if at is not None]
        if places and len(places) == len(parts):
            break
    return tuple(places)
