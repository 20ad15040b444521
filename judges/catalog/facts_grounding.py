"""Is each sentence of the answer supported by the retrieved documents, with an excerpt that exists?"""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import compress
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta, Struct

from judges.core.decision import Calibration, Question
from judges.core.judge import (
    MIN_OUTPUT_TOKENS,
    AnsweredPrompt,
    DecisionForm,
    Judge,
    Metric,
    Reading,
    has_text,
    text_tokens,
)
from judges.core.prompt import Block, Prompt, documents, history, texts_of, with_earlier_messages
from judges.core.verdict import ReasonBudget, Score
from judges.forms import typed_questions
from judges.forms.sentence_labels import (
    KEYS,
    LIST_KEY,
    MENUS,
    OPTIONS,
    QUESTION,
    ContextIndex,
    Line,
    Menu,
    guess,
    is_courtesy,
    schema,
    whole_lines,
)
from judges.parsing.answer import IncompleteAnswerError, InvalidAnswerError, choice, reasons_field, text_field
from judges.parsing.evidence import Source
from judges.parsing.object_lists import read_objects
from judges.parsing.plain import undecorated
from judges.parsing.sentences import SPLITTER, Unit, split, units
from judges.parsing.structure import without_tags
from tracejudge import Trace

_EVIDENCED: Final = frozenset({"supported", "contradictory"})
_FINE: Final = frozenset({"supported", "no_rad"})
# Tokens of a line besides the sentence and its excerpt: about 30 in the corpus of answers, more in other scripts.
_LINE_TOKENS: Final = 100
_WORD: Final = re.compile(r"\w+")
_ASCII_WORDS: Final = {code: chr(code).lower() if _WORD.match(chr(code)) else " " for code in range(128)}
_NUMBERING: Final = re.compile(r"\A\W*\d+[.)]\s+")
# Marks of sources and notes, which a model seldom copies: `[1]`, `[2, 3]`, `[^4]`, `[5](address)`, a raised number.
_CITATION: Final = re.compile(r"\s*\[\^?\d{1,3}(?:\s*[,\u2013-]\s*\d{1,3})*\](?:\([^()\s]*\))?")
_NOTE: Final = re.compile(r"(?:(?<=[^\W\d_]{3})|(?<=[.,;:!?]))[\xb9\xb2\xb3\u2070\u2074-\u2079]+")
# A fence and its language: on a line of its own in the answer, within a line where the answer is divided.
_FENCE_SIGN: Final = re.compile(r"(?:`{3,}|~{3,})[\w+#.-]*")
# Headings precede statements on their subject. Longer headings state something themselves.
_THREE_WORDS: Final = r"(?:[^\W\d_]++[^\w.!?*]*){1,3}"
_HEADING: Final = re.compile(
    rf"\s*(?:#{{1,6}}\W+(?:\d+[.)]\s+)?{_THREE_WORDS}|(\*\*|__)\W*{_THREE_WORDS}\1:?|(?:[^\W\d_]++\s?){{1,2}}:)\W*"
)
# Characters of scripts without blanks, in which a few are a sentence.
_IDEOGRAPH: Final = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `[judges.facts_grounding]`.

    Attributes:
        labels: `v1` distinguishes sentences that the context contradicts from those it does not support; `v2` has one
            label for both, which also covers partly right, wrongly attributed or unqualified sentences.
        min_covered: Share of the words of the answer that the labelled sentences must cover. Headings and courtesies do
            not count. With less the labels are requested once more, then the verdict is unscored as `incomplete`.
        score_cut: Whether a trace is judged when documents are left out to fit the model's context.
    """

    labels: Literal["v1", "v2"] = "v1"
    min_covered: Annotated[float, Meta(ge=0, le=1)] = 1.0
    score_cut: bool = False


class Checked(NamedTuple):
    """A line, its label after the evidence check, and whether its excerpt is in the context (None: needs none)."""

    line: Line
    label: str
    is_quoted: bool | None

    def reason(self) -> str:
        """Why the sentence has its label."""
        if self.is_quoted is not False:
            return self.line.rationale
        fault = "its excerpt is not in the context" if self.line.excerpt else "it has no excerpt"
        return f"called {self.line.label}, but {fault}. {self.line.rationale}".strip()

    def details(self, reasons: ReasonBudget) -> Mapping[str, object]:
        """The entry of the sentence in the details of the verdict, with the reason if it does not pass."""
        entry: dict[str, object] = {"sentence": self.line.sentence, "label": self.label}
        if self.label not in _FINE and (reason := reasons.cut(self.reason())):
            entry["rationale"] = reason
        if self.label != self.line.label:
            entry["labelled"] = self.line.label
        if self.is_quoted is not None:
            entry |= {"excerpt": self.line.excerpt, "excerpt_found": self.is_quoted}
        return entry


def make(settings: Settings) -> Judge:
    """Build the judge with one of the two label sets."""
    menu = MENUS[settings.labels]

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        query, response = Block("query", trace.input or ""), Block("response", trace.output)
        return (Prompt(menu.fixed, (*history(trace), query, *documents(trace.context), response)),)

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
        scoring=f"facts_grounding/3, {SPLITTER}",
        settings=settings,
        make=make,
        prepare=with_earlier_messages,
        cuts=("messages", "context"),
        check=lambda trace, _prompt, lines: _check(settings, trace, lines),
        # A line repeats its sentence, and its excerpt is about as long.
        output_tokens=lambda trace, _prompt: (
            MIN_OUTPUT_TOKENS + 3 * text_tokens(trace.output) + _LINE_TOKENS * len(_sentences(trace.output))
        ),
        whole_lines=whole_lines,
        decision_form=_decision_form(settings),
    )


def _decision_form(settings: Settings) -> DecisionForm:
    """Ask for the label of each sentence, as this module divides the answer: one choice a sentence."""
    options, fixed = OPTIONS[settings.labels], typed_questions.fixed_part(history=True)
    fine = [option.value in _FINE for option in options]

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        # An answer without sentences must still be asked about.
        shown = units(trace.output) or (Unit(trace.output, trace.output),)
        numbered = "\n".join(f"{number}. {unit.shown}" for number, unit in enumerate(shown, 1))
        blocks = (Block("query", trace.input or ""), *documents(trace.context), Block("response", numbered))
        questions = [Question("choice", QUESTION.format(number=number), options) for number in range(1, len(shown) + 1)]
        about = tuple(unit.text for unit in shown)
        return typed_questions.requests(Prompt(fixed, (*history(trace), *blocks), about), questions)

    def score(trace: Trace, answered: Sequence[AnsweredPrompt], calibrations: Mapping[str, Calibration]) -> Reading:
        answers = list(typed_questions.joined(answered))
        labels = [options[answer.best].value for answer in answers]
        each_fine = [sum(compress(answer.probabilities, fine)) for answer in answers]
        # The answer is as grounded as its least grounded sentence.
        raw = min(each_fine)
        scores, counts = [typed_questions.binary("grounded", raw, calibrations)], Counter(labels)
        if rated := len(labels) - counts["no_rad"]:
            share = counts["supported"] / rated
            scores.append(Score("supported_share", share, share))
        context, entries = ContextIndex("", texts_of(trace.context)), list[Mapping[str, object]]()
        for sentence, label, probability in zip(answered[0].prompt.about, labels, each_fine, strict=True):
            passage = context.nearest(sentence) if label in _EVIDENCED else None
            evidence = {} if passage is None else {"passage": passage}
            entries.append({"sentence": sentence, "label": label, "probability": probability, **evidence})
        details = {
            "grounded_as_labelled": _FINE.issuperset(labels),
            "passages": "looked up by common words, not named by the model",
            "sentences": entries,
            **typed_questions.details({"grounded": raw}, calibrations),
        }
        return Reading(tuple(scores), details=details)

    meanings = (f"{value}: {meaning}" for value, meaning in options)
    scoring = f"facts_grounding, decisions/1, {SPLITTER}"
    return DecisionForm(prompts, (fixed, QUESTION, *meanings), score, scoring, options=len(options))


_sentences = lru_cache(maxsize=4)(split)  # An answer is divided for the request, and for the check of its lines.


def _read(menu: Menu, text: str) -> tuple[Line, ...]:
    objects = read_objects(text, KEYS, LIST_KEY, last_key="excerpt", labels=menu.labels)
    texts = [
        (
            text_field(each, "sentence"),
            reasons_field(each, "rationale"),
            None if each.get("excerpt") is None else text_field(each, "excerpt"),
        )
        for each in objects
    ]
    # The form of all lines comes before their labels: an invalid form is requested again, a wrong label is not.
    labels = [choice(each, "label", menu.labels) for each in objects]
    return tuple(Line(text[0], label, *text[1:]) for text, label in zip(texts, labels, strict=True))


def _score(menu: Menu, trace: Trace, answered: Sequence[AnsweredPrompt]) -> Reading:
    ((_, lines),) = answered
    names = [document.id for document in trace.context or () if not isinstance(document, str) and document.id]
    source = Source(texts_of(trace.context), names)
    coverage = _coverage(trace.output, lines)
    checked = []
    for line in coverage.lines:
        is_quoted = line.excerpt is not None and source.holds(line.excerpt) if line.label in _EVIDENCED else None
        checked.append(Checked(line, menu.lacking if is_quoted is False else line.label, is_quoted))
    counts = Counter(each.label for each in checked)
    rated = len(checked) - counts["no_rad"]
    grounded = float(counts["supported"] == rated)
    scores = [Score("grounded", grounded, grounded, passed=bool(grounded))]
    rationale = "No sentence needs support."
    if rated:
        share = counts["supported"] / rated
        scores.append(Score("supported_share", share, share))
        failing = [f"{label}: {counts[label]}" for label in menu.labels if label not in _FINE and counts[label]]
        summary = "; ".join((f"{counts['supported']} of {rated} sentences are supported", *failing))
        failed = ((number, each) for number, each in enumerate(checked, 1) if each.label not in _FINE)
        first = next((f" Sentence {number}: {each.reason()}" for number, each in failed), "")
        rationale = f"{summary}.{first}"
    reasons = ReasonBudget()
    as_labelled = all(line.label in _FINE for line in coverage.lines)
    details = {
        "grounded_as_labelled": as_labelled,
        "check_differs": int(as_labelled != grounded),
        "fabricated_evidence": sum(each.is_quoted is False and has_text(each.line.excerpt) for each in checked),
        "missing_evidence": sum(each.is_quoted is False and not has_text(each.line.excerpt) for each in checked),
        "uncovered_sentences": coverage.uncovered,
        "invented_sentences": coverage.invented,
        "repeated_sentences": coverage.repeated,
        "sentences": [each.details(reasons) for each in checked],
    }
    return Reading(tuple(scores), rationale, details)


class Coverage(NamedTuple):
    """The lines about the sentences of an answer, and what they leave out and add."""

    lines: tuple[Line, ...]  # Without those about something that the answer does not say, and without repetitions.
    share: float  # Share of the words of the answer that the lines cover; headings and courtesies do not count.
    uncovered: int
    invented: int
    repeated: int
    is_divided: bool  # Whether the lines on one sentence have different labels.

    @classmethod
    def measure(cls, response: str, lines: tuple[Line, ...]) -> "Coverage":
        """Compare the lines with the sentences of a response."""
        # The model may divide the response differently. So a sentence is covered if its words stand in the consecutive
        # lines, by the rules for excerpts, and a line is about the response if its words stand there in the same way.
        sentences = _sentences(response)
        plain = {text: _plain(text) for text in {*sentences, *(line.sentence for line in lines)}}
        texts, labelled = [plain[each] for each in sentences], [plain[line.sentence] for line in lines]
        # Most sentences are equal but for case and punctuation; only the others need a search.
        occurrences, answer = Counter(texts), cache(lambda: Source([_plain(response)]))
        kept: dict[int, Line] = {}
        labels: dict[str, set[str]] = {}
        times: Counter[str] = Counter()
        invented = 0
        for number, (line, text) in enumerate(zip(lines, labelled, strict=True)):
            if text and text not in occurrences and not answer().says(text):
                invented += 1
                continue
            times[text] += 1
            labels.setdefault(text, set()).add(line.label)
            # A model that does not find its end repeats lines.
            if times[text] <= max(1, occurrences[text]):
                kept[number] = line
        covered = cache(lambda: Source([" ".join(labelled[number] for number in kept)]))
        uncovered = [
            sentence
            for sentence, text in zip(sentences, texts, strict=True)
            if text and not times[text] and not covered().says(_plain(_NUMBERING.sub("", sentence, count=1)))
        ]
        counted, missing = (_weight(each, sentences[-1]) if uncovered else 0 for each in (sentences, uncovered))
        return cls(
            tuple(kept.values()),
            1 - missing / counted if counted else 1.0,
            len(uncovered),
            invented,
            times.total() - len(kept),
            any(len(labels[text]) > 1 and times[text] > max(1, occurrences[text]) for text in labels),
        )


_coverage = lru_cache(maxsize=4)(Coverage.measure)  # An answer is checked, and scored right after.


def _check(settings: Settings, trace: Trace, lines: tuple[Line, ...]) -> None:
    coverage = _coverage(trace.output, lines)
    if coverage.is_divided:
        raise InvalidAnswerError("the answer holds two different labels for one sentence")
    if not coverage.lines:
        raise IncompleteAnswerError("no line is about a sentence of the response")
    if coverage.share < settings.min_covered:
        missing = f"{coverage.uncovered} of its sentences have none"
        raise IncompleteAnswerError(f"the lines cover {coverage.share:.0%} of the words of the response, {missing}")


def _plain(text: str) -> str:
    """Return the words of a text: punctuation, decoration and HTML tags do not distinguish sentences here."""
    if "[" in text:
        text = _CITATION.sub("", text)
    if "<" in text:
        text = without_tags(text, is_excerpt=True)
    if "```" in text or "~~~" in text:
        text = _FENCE_SIGN.sub(" ", text)
    # The sentences of a response are on one line each, in which a hyphen at the end of a line stays.
    text = undecorated(text, line_hyphen="-")
    if text.isascii():  # Twice as fast as the regular expression.
        return " ".join(text.translate(_ASCII_WORDS).split())
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", _NOTE.sub("", text)).casefold()))


def _weight(sentences: Sequence[str], last: str) -> int:
    """Return the number of words of some sentences, without courtesies, and headings that others follow."""
    headings = [each for each in sentences if each != last and _HEADING.fullmatch(each) and not _IDEOGRAPH.search(each)]
    return sum(len(each.split()) for each in sentences if not is_courtesy(each) and each not in headings)


JUDGE: Final = make(Settings())
