"""Is each sentence of the answer supported by the retrieved documents, with an excerpt that exists?"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from judges.answer import choice, text_field
from judges.evidence import Source
from judges.forms.sentence_labels import KEYS, LIST_KEY, MENUS, Line, Menu, schema
from judges.forms.sentence_labels_guess import guess
from judges.json_lines import read_objects
from judges.judge import Answered, Judge, Metric, Reading, has_text
from judges.prompt import Block, Prompt, documents, texts_of
from judges.sentences import SPLITTER, split
from judges.verdict import Score
from tracejudge import Trace

__all__ = ["JUDGE", "Settings", "make"]

_EVIDENCED: Final = frozenset({"supported", "contradictory"})
_SCORING: Final = f"facts_grounding/1, {SPLITTER}"
_EDGES: Final = " \t\n.,:;!?\"'`*_-()[]\u2018\u2019\u201c\u201d\u201e\u2026\u3002"
_NUMBERING: Final = re.compile(r"\A\W*\d+[.)]\s+")


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of ``facts_grounding``.

    Attributes:
        labels: `v1` tells what the context contradicts from what it does not support; `v2` has one label for both,
            which also holds what is partly right, wrongly attributed or stripped of a qualifier.
    """

    labels: Literal["v1", "v2"] = "v1"


class Checked(NamedTuple):
    """A line, its label after the evidence check, and whether its excerpt was found; absent where none is due."""

    line: Line
    label: str
    found: bool | None


def _prompts(menu: Menu, trace: Trace) -> tuple[Prompt, ...]:
    blocks = (Block("query", trace.input or ""), *documents(trace.context), Block("response", trace.output))
    return (Prompt(menu.fixed, blocks),)


def _read(menu: Menu, text: str) -> tuple[Line, ...]:
    objects = read_objects(text, KEYS, LIST_KEY, last_key="excerpt", labels=menu.labels)
    # The form of every line before the label of any: what cannot be read is asked again, a wrong label is not.
    texts = [(text_field(each, "sentence"), text_field(each, "rationale"), _excerpt(each)) for each in objects]
    labels = [choice(each, "label", menu.labels) for each in objects]
    return tuple(
        Line(sentence, label, rationale, excerpt)
        for (sentence, rationale, excerpt), label in zip(texts, labels, strict=True)
    )


def _excerpt(each: Mapping[str, object]) -> str | None:
    """Take the excerpt of a line; a key left out says the same as null."""
    return None if each.get("excerpt") is None else text_field(each, "excerpt")


def _score(menu: Menu, trace: Trace, answered: Sequence[Answered]) -> Reading:
    ((_, lines),) = answered
    source = Source(texts_of(trace.context))
    checked = [_check(menu, line, source) for line in lines]
    counts = Counter(each.label for each in checked)
    rated = len(checked) - counts["no_rad"]
    grounded = float(counts["supported"] == rated)
    scores = [Score("grounded", grounded, grounded, passed=bool(grounded))]
    if rated:
        share = counts["supported"] / rated
        scores.append(Score("supported_share", share, share))
    return Reading(tuple(scores), _rationale(menu, checked, counts), _details(trace, checked))


def _check(menu: Menu, line: Line, source: Source) -> Checked:
    if line.label not in _EVIDENCED:
        return Checked(line, line.label, None)
    found = line.excerpt is not None and source.holds(line.excerpt)
    return Checked(line, line.label if found else menu.lacking, found)


def _rationale(menu: Menu, checked: Sequence[Checked], counts: Mapping[str, int]) -> str:
    rated = len(checked) - counts["no_rad"]
    if not rated:
        return "No sentence needs support."
    failing = [label for label in menu.labels if label not in {"supported", "no_rad"} and counts[label]]
    parts = [
        f"{counts['supported']} of {rated} sentences are supported",
        *(f"{each}: {counts[each]}" for each in failing),
    ]
    first = next(((n, each) for n, each in enumerate(checked, 1) if each.label in failing), None)
    return f"{'; '.join(parts)}." + ("" if first is None else f" Sentence {first[0]}: {_why(first[1])}")


def _why(checked: Checked) -> str:
    if checked.found is not False:
        return checked.line.rationale
    given = "its excerpt is not in the context" if checked.line.excerpt else "it has no excerpt"
    return f"called {checked.line.label}, but {given}."


def _details(trace: Trace, checked: Sequence[Checked]) -> Mapping[str, object]:
    lines = [each.line for each in checked]
    return {
        "grounded_as_labelled": all(line.label in {"supported", "no_rad"} for line in lines),
        "fabricated_evidence": sum(each.found is False and has_text(each.line.excerpt) for each in checked),
        "missing_evidence": sum(each.found is False and not has_text(each.line.excerpt) for each in checked),
        **_coverage(split(trace.output), [line.sentence for line in lines]),
        "sentences": [_entry(each) for each in checked],
    }


def _entry(checked: Checked) -> Mapping[str, object]:
    entry: dict[str, object] = {"sentence": checked.line.sentence, "label": checked.label}
    if checked.label != checked.line.label:
        entry["labelled"] = checked.line.label
    if checked.found is not None:
        entry |= {"excerpt": checked.line.excerpt, "excerpt_found": checked.found}
    return entry


def _coverage(sentences: Sequence[str], labelled: Sequence[str]) -> Mapping[str, int]:
    """Count the sentences of the answer that no line covers, and the lines about something that it does not say.

    The model may divide the answer in its own way. So a sentence is covered when its words stand in the lines, read
    one after the other, by the rules for excerpts; and a line is on the answer when its words stand there likewise.
    """
    # Most sentences differ in nothing, or in case and the signs around them: only the others are worth a search.
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


def make(settings: Settings) -> Judge:
    """Make the judge for one of the two label sets."""
    menu = MENUS[settings.labels]

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
        prompts=partial(_prompts, menu),
        read=partial(_read, menu),
        score=partial(_score, menu),
        heuristic=heuristic,
        scoring=_SCORING,
        settings=settings,
        make=make,
        cuts=("context",),
    )


JUDGE: Final = make(Settings())
