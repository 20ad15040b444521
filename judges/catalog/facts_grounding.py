"""Is each sentence of the answer supported by the retrieved documents, with an excerpt that exists?"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from judges.core.judge import Answered, Judge, Metric, Reading, has_text
from judges.core.prompt import Block, Prompt, documents, texts_of
from judges.core.verdict import Score
from judges.forms.sentence_labels import KEYS, LIST_KEY, MENUS, Line, Menu, guess, schema
from judges.parsing.answer import choice, read_objects, text_field
from judges.parsing.evidence import Source
from judges.parsing.sentences import SPLITTER, split
from tracejudge import Trace

_EVIDENCED: Final = frozenset({"supported", "contradictory"})
_FINE: Final = frozenset({"supported", "no_rad"})
_SCORING: Final = f"facts_grounding/1, {SPLITTER}"
_EDGES: Final = " \t\n.,:;!?\"'`*_-()[]\u2018\u2019\u201c\u201d\u201e\u2026\u3002"
_NUMBERING: Final = re.compile(r"\A\W*\d+[.)]\s+")


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `[judges.facts_grounding]`.

    Attributes:
        labels: `v1` distinguishes sentences that the context contradicts from those it does not support; `v2` has one
            label for both, which also covers partly right, wrongly attributed or unqualified sentences.
    """

    labels: Literal["v1", "v2"] = "v1"


class Checked(NamedTuple):
    """A line, its label after the evidence check, and whether its excerpt was found; None if none is required."""

    line: Line
    label: str
    found: bool | None

    def reason(self) -> str:
        """Why the sentence has its label."""
        if self.found is not False:
            return self.line.rationale
        given = "its excerpt is not in the context" if self.line.excerpt else "it has no excerpt"
        return f"called {self.line.label}, but {given}."

    def details(self) -> Mapping[str, object]:
        """The entry of the sentence in the details of the verdict."""
        entry: dict[str, object] = {"sentence": self.line.sentence, "label": self.label}
        if self.label != self.line.label:
            entry["labelled"] = self.line.label
        if self.found is not None:
            entry |= {"excerpt": self.line.excerpt, "excerpt_found": self.found}
        return entry


def make(settings: Settings) -> Judge:
    """Build the judge with one of the two label sets."""
    menu = MENUS[settings.labels]

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        blocks = (Block("query", trace.input or ""), *documents(trace.context), Block("response", trace.output))
        return (Prompt(menu.fixed, blocks),)

    def heuristic(trace: Trace, _prompt: Prompt) -> str:
        return guess(menu, trace.output, trace.input or "", texts_of(trace.context))

    return Judge(
        name="facts_grounding",
        asks="Is each sentence of the answer supported by the retrieved documents, with an excerpt that exists?",
        metrics=(
            Metric("grounded", "0 or 1", "every sentence is supported or needs no support"),
            Metric("supported_share", "0..1", None),
        ),
        needs=("input", "output", "context"),
        fixed_parts=(menu.fixed,),
        schema=schema(menu),
        prompts=prompts,
        read=lambda text: _read(menu, text),
        score=lambda trace, answered: _score(menu, trace, answered),
        heuristic=heuristic,
        scoring=_SCORING,
        settings=settings,
        make=make,
        cuts=("context",),
    )


def _read(menu: Menu, text: str) -> tuple[Line, ...]:
    objects = read_objects(text, KEYS, LIST_KEY, last_key="excerpt", labels=menu.labels)
    unlabelled = [
        Line(
            text_field(each, "sentence"),
            label="",
            rationale=text_field(each, "rationale"),
            excerpt=None if each.get("excerpt") is None else text_field(each, "excerpt"),
        )
        for each in objects
    ]
    # The form of all lines comes before their labels: an invalid form is requested again, a wrong label is not.
    labels = [choice(each, "label", menu.labels) for each in objects]
    return tuple(line._replace(label=label) for line, label in zip(unlabelled, labels, strict=True))


def _score(menu: Menu, trace: Trace, answered: Sequence[Answered]) -> Reading:
    ((_, lines),) = answered
    source = Source(texts_of(trace.context))
    checked = []
    for line in lines:
        found = line.excerpt is not None and source.holds(line.excerpt) if line.label in _EVIDENCED else None
        checked.append(Checked(line, menu.lacking if found is False else line.label, found))
    counts = Counter(each.label for each in checked)
    rated = len(checked) - counts["no_rad"]
    grounded = float(counts["supported"] == rated)
    scores = [Score("grounded", grounded, grounded, passed=bool(grounded))]
    rationale = "No sentence needs support."
    if rated:
        share = counts["supported"] / rated
        scores.append(Score("supported_share", share, share))
        failing = [f"{label}: {counts[label]}" for label in menu.labels if label not in _FINE and counts[label]]
        said = "; ".join((f"{counts['supported']} of {rated} sentences are supported", *failing))
        failed = ((number, each) for number, each in enumerate(checked, 1) if each.label not in _FINE)
        first = next((f" Sentence {number}: {each.reason()}" for number, each in failed), "")
        rationale = f"{said}.{first}"
    details = {
        "grounded_as_labelled": all(line.label in _FINE for line in lines),
        "fabricated_evidence": sum(each.found is False and has_text(each.line.excerpt) for each in checked),
        "missing_evidence": sum(each.found is False and not has_text(each.line.excerpt) for each in checked),
        **_coverage(split(trace.output), [line.sentence for line in lines]),
        "sentences": [each.details() for each in checked],
    }
    return Reading(tuple(scores), rationale, details)


def _coverage(sentences: Sequence[str], labelled: Sequence[str]) -> Mapping[str, int]:
    """Count the sentences of the answer without a line, and the lines about something that the answer does not say.

    The model may divide the answer differently. So a sentence is covered if its words stand in the consecutive lines,
    by the rules for excerpts, and a line is about the answer if its words stand there in the same way.
    """
    # Most sentences are equal but for case and punctuation; only the others need a search.
    known, given = set(map(_bare, sentences)), set(map(_bare, labelled))
    lines, answer = Source([" ".join(labelled)]), Source([" ".join(sentences)])
    left_out = (_NUMBERING.sub("", each, count=1) for each in sentences if _bare(each) not in given)
    added = (each for each in labelled if _bare(each) not in known)
    return {
        "uncovered_sentences": sum(_has_word(each) and not lines.says(each) for each in left_out),
        "invented_sentences": sum(_has_word(each) and not answer.says(each) for each in added),
    }


def _bare(sentence: str) -> str:
    return sentence.casefold().strip(_EDGES)


def _has_word(text: str) -> bool:
    return any(map(str.isalnum, text))


JUDGE: Final = make(Settings())
