"""How an answer rests on its documents, document sentence by document sentence (RAGBench, TRACe)."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from judges.core.judge import AnsweredPrompt, Judge, Reading
from judges.core.prompt import Block, Prompt, history, texts_of, with_earlier_messages
from judges.core.verdict import ReasonBudget
from judges.forms import document_support as support
from judges.forms.keyed_sentences import MAX_ENTRIES, Keyed, Near, Overlap
from judges.parsing.answer import reasons_field, text_field, truth
from judges.parsing.sentences import SPLITTER, letters, split, units
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
DEFINITIONS: Final = """\
The part `documents` holds one sentence a line, each behind its key. A sentence is relevant if the part `question` \
cannot be answered correctly and in full without it. It is used if the part `answer` plainly takes up what it says, in \
its words or in others."""
_FIXED: Final = support.fixed_part(ROLE, CRITERION, FORM)
_KEY: Final = "[A-Za-z0-9_-]+_S[0-9]+"
_PLAIN_ID: Final = re.compile("[A-Za-z0-9_-]{1,40}")


class Settings(support.Settings, frozen=True, forbid_unknown_fields=True):
    """Settings of `[judges.ragbench_sources]`.

    Attributes:
        document_ids: Whether keys contain the ids of documents, as `manual-7_S2`. The ids must consist of up to 40
            letters, digits, `-` and `_`, and differ from each other and from the default names; otherwise all keys have
            the default form `D1_S2`.
    """

    document_ids: bool = False


class Entry(NamedTuple):
    """The model's assessment of one document sentence."""

    key: str
    is_supported: bool
    explanation: str

    @classmethod
    def read(cls, entry: Mapping[str, object]) -> "Entry":
        """Parse an entry with all its keys."""
        return cls(text_field(entry, "sentence_key"), truth(entry, "is_supported"), reasons_field(entry, "explanation"))


def make(settings: Settings) -> Judge:
    """Build the judge with its settings."""

    def material(trace: Trace) -> tuple[tuple[Block, ...], Keyed]:
        context = trace.context or ()
        names = _names(context, ids=settings.document_ids)
        documents = Keyed.build(
            {
                f"{name}_S{number}": unit
                for name, text in zip(names, texts_of(context), strict=True)
                for number, unit in enumerate(units(text), 1)
            }
        )
        blocks = (
            *history(trace),
            Block("question", trace.input or ""),
            Block("documents", documents.render(":")),
            Block("answer", trace.output),
        )
        return blocks, documents

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        blocks, documents = material(trace)
        schema = _schema(support.keys_of(documents.sentences, _KEY)) if settings.enum_keys else None
        return (Prompt(_FIXED, blocks, documents, schema),)

    def score(_trace: Trace, answered: Sequence[AnsweredPrompt]) -> Reading:
        ((prompt, answer),) = answered
        measured = support.measure(
            answer, prompt.about, lengths=settings.lengths, empty_completeness=settings.empty_completeness
        )
        return Reading(measured.scores, answer.explanation, _details(prompt.about, answer, measured))

    return Judge(
        name="ragbench_sources",
        asks="Which document sentences are relevant and used, and is what the answer makes of each supported?",
        metrics=support.METRICS,
        needs=("input", "output", "context"),
        fixed_parts=(_FIXED,),
        schema=_schema(support.keys_like(_KEY)),
        prompts=prompts,
        read=lambda text: support.read(text, _ENTRY_KEYS, Entry.read),
        score=score,
        heuristic=heuristic,
        scoring=f"ragbench_sources/2, {SPLITTER}",
        settings=settings,
        make=make,
        prepare=with_earlier_messages,
        cuts=("messages", "context"),
        check=lambda _trace, prompt, answer: support.check_keys(
            answer, prompt.about, sentence_key=prompt.about.sift(entry.key for entry in answer.entries)
        ),
        output_tokens=lambda _trace, prompt: support.output_tokens(
            len(prompt.about.sentences), len(prompt.about.sentences)
        ),
        decision_form=support.decision_form(
            *("ragbench_sources", DEFINITIONS, material),
            lengths=settings.lengths,
            empty_completeness=settings.empty_completeness,
        ),
    )


def _schema(key: Mapping[str, object]) -> Mapping[str, object]:
    return support.schema(key, dict(zip(_ENTRY_KEYS, (key, None, None), strict=True)))


def _names(context: Sequence[Document | str], *, ids: bool) -> list[str]:
    """Name documents by id, or by rank without one; all by rank if one of the ids is unusable."""
    defaults = [f"D{rank}" for rank in range(1, len(context) + 1)]
    if not ids:
        return defaults
    own_ids = [None if isinstance(document, str) else document.id for document in context]
    names = [default if name is None else name for name, default in zip(own_ids, defaults, strict=True)]
    own = {name.lower() for name, default in zip(names, defaults, strict=True) if name.lower() != default.lower()}
    usable = (
        all(_PLAIN_ID.fullmatch(name) for name in names)
        and len({name.lower() for name in names}) == len(names)
        and own.isdisjoint(default.lower() for default in defaults)
    )
    return names if usable else defaults


def _details(documents: Keyed, answer: support.Support[Entry], measured: support.Measured) -> Mapping[str, object]:
    by_key: dict[str, Entry] = {}
    repeated, reasons = 0, ReasonBudget()
    for entry in answer.entries:
        for key in documents.sift([entry.key]).keys:
            # Of several entries on one sentence the last one counts.
            repeated += key in by_key
            by_key[key] = entry
    unknown = documents.sift(entry.key for entry in answer.entries).unknown
    return {
        "document_sentences": len(documents.sentences),
        "relevant": measured.relevant,
        "utilized": measured.utilized,
        "fabricated_evidence": measured.unknown + unknown,
        "completeness_undefined": int(not measured.relevant),
        "check_differs": int(answer.supported and not all(entry.is_supported for entry in by_key.values())),
        # An unsupported answer whose sentences are all supported is no contradiction: an invention rests on none.
        "contradictions": sum(not entry.is_supported for entry in by_key.values()) * answer.supported,
        "sentence_support": [
            {"sentence_key": key, "is_supported": by_key[key].is_supported}
            | ({} if by_key[key].is_supported else {"explanation": reasons.cut(by_key[key].explanation)})
            for key in documents.ordered(by_key)
        ],
        "missing_entries": len({*measured.relevant, *measured.utilized} - by_key.keys()),
        "repeated_entries": repeated,
    }


def heuristic(trace: Trace, prompt: Prompt) -> Mapping[str, object]:
    """Answer by word overlap."""
    documents: Keyed = prompt.about

    def judged(overlap: Overlap, near: Mapping[str, Near], relevant: Sequence[str]) -> tuple[object, object]:
        used = overlap.used(near)
        explanations = {key: f"{share:.0%} of its words appear in the answer." for key, share in used.items()}
        entries = [
            {"sentence_key": key, "is_supported": True, "explanation": explanations.get(key, "Not used.")}
            for key in documents.ordered({*relevant, *used})[:MAX_ENTRIES]
        ]
        return entries, list(used)

    return support.guess(trace, documents, dict(zip(letters(), split(trace.output), strict=False)), judged)


JUDGE: Final = make(Settings())
