"""How an answer rests on its documents, answer sentence by answer sentence (RAGBench, TRACe)."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from judges.forms import support, trace_scores
from judges.forms.keyed import Keyed
from judges.forms.overlap import Near, Overlap, verdict
from judges.forms.response_support import ENTRY_KEYS, Entry, check, read_entry
from judges.judge import Answered, Judge, Reading
from judges.prompt import Block, Prompt, texts_of
from judges.sentences import SPLITTER, letters, split
from tracejudge import Trace

ROLE: Final = """\
You examine how an answer rests on documents, sentence by sentence. You are exact: you name sentences by their keys, \
and only by keys that stand in the material."""

CRITERION: Final = """\
What the material holds
- question: what was asked.
- documents: what was retrieved for the question, divided into sentences, one a line, each line opening with the key \
of its sentence. In `2c. <text>` the key is `2c`, without the dot: the third sentence of document 2. Documents are \
counted from 0; after sentence z come aa, ab and so on.
- answer: the answer to examine, divided in the same way. In `b. <text>` the key is `b`.
A key stands at the opening of a line only. What looks like a key further on in a line is part of the sentence.

What to decide, in this order
1. Relevant document sentences. Look at question and documents only, as if there were no answer. A sentence is \
relevant when it is useful for answering the question, whether or not the answer used it. Explain step by step which \
documents help to answer, and how; then list the keys.
2. The answer as a whole. Go through it claim by claim: say what it claims, whether the documents support this, and by \
which sentences. Say nothing about the whole before you have dealt with the last claim. Whether the whole is supported \
follows from these steps: true when the documents support every claim, false when at least one claim is not supported. \
What one of the special words below rightly covers does not count against the whole.
3. Each sentence of the answer. Give one entry for every one of them, in their order:
   - Explain what the sentence says and what bears it out.
   - List the keys of the document sentences that support it, wholly or in part. The list is empty exactly when \
nothing supports the sentence; then it is not fully supported.
   - fully_supported follows from your explanation. It is true only when nothing in the sentence goes beyond the text \
you named, or beyond what a special word below rightly covers. Keys together with false mean: supported in part.
   - In place of keys, or beside them, this list alone may hold four special words:
     - supported_without_sentence: the documents as a whole support the sentence but no single sentence of theirs \
does, or the sentence says that the documents do not hold the answer. Example: `All three reports treat the same \
outage.`
     - general: the sentence lays out the steps to an answer, sums up what was said, or leads over. Example: `Let us \
look at the costs first.`
     - well_known_fact: the sentence states correctly what is common knowledge, such as a formula. Example: `The area \
of a circle is pi times the square of its radius.`
     - numerical_reasoning: the sentence calculates, as a sum or a product. Example: `Two nights at 80 euros come to \
160 euros.`
4. Utilized document sentences. List the keys of those that were used to build the answer, directly or implicitly, \
whether or not they are relevant.

For both lists: a sentence counts even when only a part of it serves. Leave a sentence out when deleting it would \
change nothing: from the relevant ones when nobody could answer the question worse without it, from the utilized ones \
when the answer could have been written just the same without it."""

FORM: Final = """\
{
  "relevance_explanation": "<text>",           // which documents help to answer, and how, step by step
  "all_relevant_sentence_keys": ["<key>"],     // keys of document sentences; [] when there is none
  "overall_supported_explanation": "<text>",   // claim by claim; the whole comes last
  "overall_supported": true|false,             // follows from that explanation
  "sentence_support_information": [            // one entry for each sentence of the answer
    {
      "response_sentence_key": "<key>",        // key of a sentence of the answer
      "explanation": "<text>",                 // what the sentence says, and what bears it out
      "supporting_sentence_keys": ["<key>"],   // keys of document sentences, special words; [] when nothing supports it
      "fully_supported": true|false            // follows from the explanation
    }
  ],
  "all_utilized_sentence_keys": ["<key>"]      // keys of document sentences; [] when there is none
}"""

_FIXED: Final = support.fixed_part(ROLE, CRITERION, FORM)


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """What can be configured under `[judges.ragbench]`.

    Attributes:
        lengths: Whether the shares count the words of sentences instead of the sentences.
    """

    lengths: bool = False


class Shown(NamedTuple):
    """The sentences of one request."""

    documents: Keyed
    answer: Keyed


def make(settings: Settings) -> Judge:
    """Make the judge with its settings."""

    def score(_trace: Trace, answered: Sequence[Answered]) -> Reading:
        ((prompt, answer),) = answered
        return _reading(prompt.about, answer, lengths=settings.lengths)

    return Judge(
        name="ragbench",
        asks="Which document sentences are relevant and used, and is each sentence of the answer supported by them?",
        metrics=trace_scores.METRICS,
        needs=("input", "output", "context"),
        fixed_parts=(_FIXED,),
        schema=support.schema(ENTRY_KEYS),
        prompts=_prompts,
        read=_read,
        score=score,
        heuristic=_heuristic,
        scoring=f"ragbench/1, {SPLITTER}",
        settings=settings,
        make=make,
        cuts=("context",),
    )


def _prompts(trace: Trace) -> tuple[Prompt, ...]:
    documents = Keyed(
        {
            f"{index}{letter}": sentence
            for index, text in enumerate(texts_of(trace.context))
            for letter, sentence in zip(letters(), split(text), strict=False)
        }
    )
    answer = Keyed(dict(zip(letters(), split(trace.output), strict=False)))
    blocks = (
        Block("question", trace.input or ""),
        Block("documents", documents.shown(".")),
        Block("answer", answer.shown(".")),
    )
    return (Prompt(_FIXED, blocks, Shown(documents, answer)),)


def _read(text: str) -> support.Support[Entry]:
    return support.read(text, ENTRY_KEYS, read_entry)


def _reading(shown: Shown, answer: support.Support[Entry], *, lengths: bool) -> Reading:
    measured = support.measure(answer, shown.documents, lengths=lengths)
    entries = check(answer.entries, shown.answer, shown.documents)
    details = {
        "document_sentences": len(shown.documents.sentences),
        "relevant": measured.relevant,
        "utilized": measured.utilized,
        "adherence_checked": answer.supported and entries.hold(),
        "fabricated_evidence": measured.unknown + sum(entry.unknown for entry in entries.checked),
        "contradictions": entries.contradictions(supported=answer.supported),
        **entries.details(),
    }
    return Reading(measured.scores, answer.explanation, details)


def _heuristic(trace: Trace, prompt: Prompt) -> Mapping[str, object]:
    shown: Shown = prompt.about
    overlap = Overlap(shown.documents.sentences)
    found = overlap.nearest(shown.answer.sentences)
    relevant, said_of_question = overlap.relevant(trace.input or "")
    supported, said_of_answer = verdict(found, len(shown.answer.sentences))
    return {
        "relevance_explanation": said_of_question,
        "all_relevant_sentence_keys": relevant,
        "overall_supported_explanation": said_of_answer,
        "overall_supported": supported,
        "sentence_support_information": [_guess(key, near) for key, near in found.items()],
        "all_utilized_sentence_keys": shown.documents.ordered({key for near in found.values() for key in near.keys}),
    }


def _guess(key: str, near: Near) -> Mapping[str, object]:
    return {
        "response_sentence_key": key,
        "explanation": near.in_words,
        "supporting_sentence_keys": near.keys or (["general"] if near.supports else []),
        "fully_supported": near.supports,
    }


JUDGE: Final = make(Settings())
