"""How an answer rests on its documents, answer sentence by answer sentence (RAGBench, TRACe)."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from judges.core.judge import AnsweredPrompt, Judge, Reading
from judges.core.prompt import Block, Prompt, history, texts_of, with_earlier_messages
from judges.core.verdict import ReasonBudget
from judges.forms import document_support as support
from judges.forms.document_support import Settings
from judges.forms.keyed_sentences import Keyed, Near, Overlap
from judges.parsing.answer import reasons_field, text_field, truth
from judges.parsing.sentences import SPLITTER, letters, units
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

DEFINITIONS: Final = """\
The part `documents` holds one sentence a line, each behind its key. A sentence is relevant if it helps to answer the \
part `question`, in whole or in part; the answer plays no role. It is used if the part `answer` was made from it, \
directly or indirectly. A sentence without which nothing would change is neither."""
_FIXED: Final = support.fixed_part(ROLE, CRITERION, FORM)
_ENTRY_KEYS: Final = ("response_sentence_key", "explanation", "supporting_sentence_keys", "fully_supported")
# Accepted in place of keys, and exempt from the check.
SPECIAL_WORDS: Final = frozenset({"supported_without_sentence", "general", "well_known_fact", "numerical_reasoning"})
_DOCUMENT_KEY: Final = "[0-9]+[a-z]+"
_ANSWER_KEY: Final = "[a-z]+"
_SUPPORT: Final = "|".join((_DOCUMENT_KEY, *sorted(SPECIAL_WORDS)))


class Shown(NamedTuple):
    """The sentences of one request."""

    documents: Keyed
    answer: Keyed


class Entry(NamedTuple):
    """The model's assessment of one sentence of the answer."""

    key: str
    supporting: tuple[str, ...]
    fully_supported: bool
    explanation: str

    @classmethod
    def read(cls, entry: Mapping[str, object]) -> "Entry":
        """Parse an entry with all its keys."""
        key, evidence = text_field(entry, "response_sentence_key"), support.key_list(entry, "supporting_sentence_keys")
        return cls(key, evidence, truth(entry, "fully_supported"), reasons_field(entry, "explanation"))


def make(settings: Settings) -> Judge:
    """Build the judge with its settings."""

    def documents_of(trace: Trace) -> tuple[tuple[Block, ...], Keyed]:
        blocks, shown = _material(trace)
        return blocks, shown.documents

    def score(_trace: Trace, answered: Sequence[AnsweredPrompt]) -> Reading:
        ((prompt, answer),) = answered
        shown: Shown = prompt.about
        measured = support.measure(
            answer, shown.documents, lengths=settings.lengths, empty_completeness=settings.empty_completeness
        )
        return Reading(measured.scores, answer.explanation, _details(shown, answer, measured))

    return Judge(
        name="ragbench",
        asks="Which document sentences are relevant and used, and is each sentence of the answer supported by them?",
        metrics=support.METRICS,
        needs=("input", "output", "context"),
        fixed_parts=(_FIXED,),
        schema=_schema(support.keys_like(_DOCUMENT_KEY), support.keys_like(_ANSWER_KEY), support.keys_like(_SUPPORT)),
        prompts=_prompts_with_keys if settings.enum_keys else prompts,
        read=lambda text: support.read(text, _ENTRY_KEYS, Entry.read),
        score=score,
        heuristic=heuristic,
        scoring=f"ragbench/2, {SPLITTER}",
        settings=settings,
        make=make,
        prepare=with_earlier_messages,
        cuts=("messages", "context"),
        check=_check,
        output_tokens=lambda _trace, prompt: support.output_tokens(
            len(prompt.about.answer.sentences), len(prompt.about.documents.sentences)
        ),
        decision_form=support.decision_form(
            *("ragbench", DEFINITIONS, documents_of),
            lengths=settings.lengths,
            empty_completeness=settings.empty_completeness,
        ),
    )


def _schema(
    document_key: Mapping[str, object], answer_key: Mapping[str, object], supporting: Mapping[str, object]
) -> Mapping[str, object]:
    supports = {"type": "array", "items": supporting}
    return support.schema(document_key, dict(zip(_ENTRY_KEYS, (answer_key, None, supports, None), strict=True)))


def _prompts_with_keys(trace: Trace) -> tuple[Prompt, ...]:
    (prompt,) = prompts(trace)
    documents, answer = (keyed.sentences for keyed in prompt.about)
    schema = _schema(
        support.keys_of(documents, _DOCUMENT_KEY),
        support.keys_of(answer, _ANSWER_KEY),
        support.keys_of(documents, _SUPPORT, SPECIAL_WORDS),
    )
    return (prompt._replace(schema=schema),)


def _check(_trace: Trace, prompt: Prompt, answer: support.Support[Entry]) -> None:
    shown: Shown = prompt.about
    support.check_keys(
        answer,
        shown.documents,
        response_sentence_key=shown.answer.sift(entry.key for entry in answer.entries),
        supporting_sentence_keys=shown.documents.sift(
            (key for entry in answer.entries for key in entry.supporting), besides=SPECIAL_WORDS
        ),
    )


def prompts(trace: Trace) -> tuple[Prompt, ...]:
    """Show the sentences of documents and answer, each with its key."""
    blocks, shown = _material(trace)
    return (Prompt(_FIXED, blocks, shown),)


def _material(trace: Trace) -> tuple[tuple[Block, ...], Shown]:
    documents = Keyed.build(
        {
            f"{index}{letter}": unit
            for index, text in enumerate(texts_of(trace.context))
            for letter, unit in zip(letters(), units(text), strict=False)
        }
    )
    answer = Keyed.build(dict(zip(letters(), units(trace.output), strict=False)))
    blocks = (
        *history(trace),
        Block("question", trace.input or ""),
        Block("documents", documents.render(".")),
        Block("answer", answer.render(".")),
    )
    return blocks, Shown(documents, answer)


def _details(shown: Shown, answer: support.Support[Entry], measured: support.Measured) -> Mapping[str, object]:
    """Check the entries against the sentences shown; returns no texts but the reasons of those that fail."""
    last: dict[str, Entry] = {}
    repeated = unknown_entries = 0
    for entry in answer.entries:
        named = shown.answer.sift([entry.key]).keys
        unknown_entries += not named
        for key in named:
            # Of several entries on one sentence the last one counts.
            repeated += key in last
            last[key] = entry
    sentences: list[Mapping[str, object]] = []
    unknown, unsupported, unfounded, reasons = measured.unknown, 0, 0, ReasonBudget()
    all_hold = len(last) == len(shown.answer.sentences)
    for key in shown.answer.ordered(last):
        _, named, fully_supported, explanation = last[key]
        evidence = shown.documents.sift(named, besides=SPECIAL_WORDS)
        unknown += evidence.unknown
        unfounded += fully_supported and not named
        unsupported += not (fully_supported and named)
        holds = fully_supported and bool(evidence.keys)
        all_hold = all_hold and holds
        kept = {} if holds else {"explanation": reasons.cut(explanation)}
        named_as = {"response_sentence_key": key, "supporting_sentence_keys": list(evidence.keys)}
        sentences.append({**named_as, "fully_supported": holds, **kept})
    missing = len(shown.answer.sentences) - len(last)
    return {
        "document_sentences": len(shown.documents.sentences),
        "relevant": measured.relevant,
        "utilized": measured.utilized,
        "adherence_checked": answer.supported and all_hold,
        "check_differs": int(answer.supported != all_hold),
        "fabricated_evidence": unknown,
        "completeness_undefined": int(not measured.relevant),
        # The model's entries against its own verdict on the whole, before the check of the evidence.
        "contradictions": unsupported if answer.supported else int(not unsupported and not missing),
        "sentence_support": sentences,
        "supported_by_nothing": unfounded,
        "missing_entries": missing,
        "repeated_entries": repeated,
        "unknown_entries": unknown_entries,
    }


def heuristic(trace: Trace, prompt: Prompt) -> Mapping[str, object]:
    """Answer by word overlap."""
    shown: Shown = prompt.about

    def judged(_: Overlap, nearest: Mapping[str, Near], _relevant: Sequence[str]) -> tuple[object, object]:
        entries = [
            {
                "response_sentence_key": key,
                "explanation": near.in_words,
                "supporting_sentence_keys": near.keys or (["general"] if near.supports else []),
                "fully_supported": near.supports,
            }
            for key, near in nearest.items()
        ]
        return entries, shown.documents.ordered({key for near in nearest.values() for key in near.keys})

    return support.guess(trace, shown.documents, shown.answer.sentences, judged)


JUDGE: Final = make(Settings())
