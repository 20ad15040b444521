"""How an answer rests on its documents, document sentence by document sentence (RAGBench, TRACe)."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from judges.answer import text_field, truth
from judges.forms import support, trace_scores
from judges.forms.keyed import Keyed
from judges.forms.overlap import MAX_ENTRIES, Overlap, verdict
from judges.judge import Answered, Judge, Reading
from judges.prompt import Block, Prompt, texts_of
from judges.sentences import SPLITTER, letters, split
from tracejudge import Document, Trace

ROLE: Final = """\
You examine what an answer made of the documents it was given. You are exact: you name sentences by their keys, and \
only by keys that stand in the material."""

CRITERION: Final = """\
What the material holds
- question: what was asked.
- documents: what was retrieved for the question, divided into sentences, one a line. Each line opens with the key of \
its sentence and a colon: `D2_S5: <text>` is the fifth sentence of the second document, and its key is `D2_S5`. A \
document may bear a name of its own in place of `D2`; take keys as they stand. What looks like a key further on in a \
line is part of the sentence.
- answer: the answer to examine, as it was given.

What to decide
1. Relevant sentences. Look at question and documents only. A sentence is relevant when the question cannot be \
answered correctly and in full without it. Explain in a few words what the question needs; then list the keys.
2. Utilized sentences. A sentence is utilized when the answer plainly takes up its information, in its words or in \
others. Whether it is relevant plays no part.
3. Single sentences. Give one entry for at least each sentence that is relevant or utilized. Decide whether what the \
answer makes of the sentence is borne out by the documents: true when the answer reports it as the documents have it, \
false when the answer twists it, adds to it or contradicts it. A relevant sentence that the answer did not use gets \
true, with the explanation `not used`.
4. The answer as a whole. It is supported when each of its factual claims rests on the given sentences, be it \
indirectly or by joining several of them. One important invented fact makes it unsupported: false. What you know from \
elsewhere does not count.
Decide in this order. The answer lists relevant sentences, the whole, single sentences and utilized sentences, as \
shown below. Keep all explanations short."""

FORM: Final = """\
{
  "relevance_explanation": "<text>",           // what the question needs, and where it stands
  "all_relevant_sentence_keys": ["<key>"],     // keys of document sentences; [] when there is none
  "overall_supported_explanation": "<text>",   // which claims rest on which sentences, and which on none
  "overall_supported": true|false,             // follows from that explanation
  "sentence_support_information": [            // one entry for each sentence in either list
    {
      "sentence_key": "<key>",                 // key of a document sentence
      "is_supported": true|false,              // whether the documents bear out what the answer makes of it
      "explanation": "<text>"                  // why; or: not used
    }
  ],
  "all_utilized_sentence_keys": ["<key>"]      // keys of document sentences; [] when there is none
}"""

_ENTRY_KEYS: Final = ("sentence_key", "is_supported", "explanation")
_FIXED: Final = support.fixed_part(ROLE, CRITERION, FORM)
_PLAIN_ID: Final = re.compile("[A-Za-z0-9_-]{1,40}")


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """What can be configured under `[judges.ragbench_sources]`.

    Attributes:
        lengths: Whether the shares count the words of sentences instead of the sentences.
        document_ids: Whether keys bear the ids of documents, as `manual-7_S2`. It needs ids of letters, digits, `-` and
            `_`, up to 40 of them, that differ from one another and from the default names; else all keep `D1_S2`.
    """

    lengths: bool = False
    document_ids: bool = False


class Entry(NamedTuple):
    """What the model said of one document sentence."""

    key: str
    is_supported: bool


class _Entries(NamedTuple):
    """The entries on existing sentences, with how many came twice or were on none."""

    by_key: Mapping[str, bool]
    repeated: int
    unknown: int


def make(settings: Settings) -> Judge:
    """Make the judge with its settings."""

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        documents = _keyed(trace.context or (), ids=settings.document_ids)
        blocks = (
            Block("question", trace.input or ""),
            Block("documents", documents.shown(":")),
            Block("answer", trace.output),
        )
        return (Prompt(_FIXED, blocks, documents),)

    def score(_trace: Trace, answered: Sequence[Answered]) -> Reading:
        ((prompt, answer),) = answered
        return _reading(prompt.about, answer, lengths=settings.lengths)

    return Judge(
        name="ragbench_sources",
        asks="Which document sentences are relevant and used, and is what the answer makes of each supported?",
        metrics=trace_scores.METRICS,
        needs=("input", "output", "context"),
        fixed_parts=(_FIXED,),
        schema=support.schema(_ENTRY_KEYS),
        prompts=prompts,
        read=_read,
        score=score,
        heuristic=_heuristic,
        scoring=f"ragbench_sources/1, {SPLITTER}",
        settings=settings,
        make=make,
        cuts=("context",),
    )


def _keyed(context: Sequence[Document | str], *, ids: bool) -> Keyed:
    names = _names(context) if ids else _default_names(context)
    return Keyed(
        {
            f"{name}_S{number}": sentence
            for name, text in zip(names, texts_of(context), strict=True)
            for number, sentence in enumerate(split(text), 1)
        }
    )


def _default_names(context: Sequence[Document | str]) -> list[str]:
    return [f"D{rank}" for rank in range(1, len(context) + 1)]


def _names(context: Sequence[Document | str]) -> list[str]:
    """Name documents by their ids, those without one by their rank; all by their rank where an id does not serve."""
    defaults = _default_names(context)
    ids = [None if isinstance(document, str) else document.id for document in context]
    names = [default if name is None else name for name, default in zip(ids, defaults, strict=True)]
    own = {name.lower() for name, default in zip(names, defaults, strict=True) if name.lower() != default.lower()}
    serve = (
        all(_PLAIN_ID.fullmatch(name) for name in names)
        and len({name.lower() for name in names}) == len(names)
        and own.isdisjoint(default.lower() for default in defaults)
    )
    return names if serve else defaults


def _read(text: str) -> support.Support[Entry]:
    return support.read(text, _ENTRY_KEYS, _entry)


def _entry(found: Mapping[str, object]) -> Entry:
    return Entry(text_field(found, "sentence_key"), truth(found, "is_supported"))


def _reading(documents: Keyed, answer: support.Support[Entry], *, lengths: bool) -> Reading:
    measured = support.measure(answer, documents, lengths=lengths)
    entries = _existing(answer.entries, documents)
    listed = {*measured.relevant, *measured.utilized}
    unsupported = sum(not is_supported for is_supported in entries.by_key.values())
    details = {
        "document_sentences": len(documents.sentences),
        "relevant": measured.relevant,
        "utilized": measured.utilized,
        "fabricated_evidence": measured.unknown + entries.unknown,
        # An unsupported whole with supported sentences is none: what is invented rests on no sentence at all.
        "contradictions": unsupported if answer.supported else 0,
        "sentence_support": [
            {"sentence_key": key, "is_supported": entries.by_key[key]} for key in documents.ordered(entries.by_key)
        ],
        "missing_entries": len(listed - entries.by_key.keys()),
        "repeated_entries": entries.repeated,
    }
    return Reading(measured.scores, answer.explanation, details)


def _existing(entries: Sequence[Entry], documents: Keyed) -> _Entries:
    """Keep the entries on sentences that exist. Of several on one sentence the last one counts, as with answers."""
    by_key: dict[str, bool] = {}
    repeated = 0
    for entry in entries:
        key = documents.find(entry.key)
        if key is not None:
            repeated += key in by_key
            by_key[key] = entry.is_supported
    return _Entries(by_key, repeated, documents.sift(entry.key for entry in entries).unknown)


def _heuristic(trace: Trace, prompt: Prompt) -> Mapping[str, object]:
    documents: Keyed = prompt.about
    overlap = Overlap(documents.sentences)
    relevant, said_of_question = overlap.relevant(trace.input or "")
    answer = dict(zip(letters(), split(trace.output), strict=False))
    near = overlap.nearest(answer)
    used = overlap.used(near)
    supported, said_of_answer = verdict(near, len(answer))
    return {
        "relevance_explanation": said_of_question,
        "all_relevant_sentence_keys": relevant,
        "overall_supported_explanation": said_of_answer,
        "overall_supported": supported,
        "sentence_support_information": [
            {"sentence_key": key, "is_supported": True, "explanation": _said(used.get(key))}
            for key in documents.ordered({*relevant, *used})[:MAX_ENTRIES]
        ],
        "all_utilized_sentence_keys": list(used),
    }


def _said(share: float | None) -> str:
    return "Not used." if share is None else f"{share:.0%} of its words stand in the answer."


JUDGE: Final = make(Settings())
