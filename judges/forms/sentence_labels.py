"""One label for each sentence of an answer, with an excerpt as evidence: the two label sets and their prompts."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

import msgspec

from judges.core.decision import Option
from judges.core.prompt import MATERIAL_RULES, history_rules
from judges.parsing.answer import answer_of, object_schema
from judges.parsing.plain import simplify
from judges.parsing.sentences import content_words, coverage, numbers, split

KEYS: Final = ("sentence", "label", "rationale")  # Required keys of a line; a missing excerpt means null.
LIST_KEY: Final = "sentences"
ROLE: Final = """\
You check the response of an assistant against documents, sentence by sentence. You are exact, and you trust the \
documents only."""
TASK: Final = """\
What to decide
The material holds a query, the context, which is everything that was retrieved for this query (each part named \
`document`), and the response an assistant gave. Divide the response into its sentences yourself: in their order, none \
left out, none added. Copy each sentence whole. Give each sentence one label, by what the context says on it.

What counts as one sentence
- A heading and an item of a list are sentences too. An item, a turn of a dialogue, a cell or a text in JSON that has \
several sentences is divided into them.
- A row of a table is one sentence. It says what its cells say under the headings of their columns. The row of the \
headings is no sentence.
- A block of code is one sentence. It is supported when the context has the same code, or says that such code does \
what the response says it does.
- In JSON, and in lines such as `key: value`, each key with its value is one sentence."""
SUPPORTED: Final = """\
- supported: the sentence follows from the context, in the same words or in others. Whoever believes the context must \
believe the sentence, with all it says. The excerpt is the text of the context that proves all of it."""
NO_RAD: Final = """\
- no_rad: the sentence needs no attribution, because it states nothing that could be looked up: an opinion, a \
greeting, a question, a disclaimer, such as that the context does not say something. The excerpt is null."""
LABELS_V1: Final = f"""\
The labels
{SUPPORTED}
- unsupported: the context does not prove the sentence. It says nothing on it or on a part of it, or leaves it open. \
The excerpt is null.
- contradictory: the context shows that the sentence or a part of it is false; both cannot be true. The excerpt is the \
text of the context that shows it.
{NO_RAD}

How to weigh
- Be strict both ways. supported and contradictory each need plain evidence in the context that nobody could dispute. \
Where the evidence has to be stretched, or the sentence is merely likely or unlikely, the label is unsupported."""
LABELS_V2: Final = f"""\
The labels
{SUPPORTED}
- not_supported: the context does not prove the sentence. It says nothing on it, leaves it open or says otherwise. The \
same label goes to a sentence that is right only in part, that is inferred without support, that attributes something \
to the wrong source, that picks out what suits it while the rest of the context tells otherwise, or that drops a \
qualifier, such as `up to` or `usually`. The excerpt is null.
{NO_RAD}

How to weigh
- Be strict. supported needs plain evidence in the context that nobody could dispute. Where the evidence has to be \
stretched, or the sentence is merely likely, the label is not_supported."""
WEIGHING: Final = """\
- Bring in knowledge of your own only where it is trivial, such as that a week has seven days. What you happen to know \
beyond that is no evidence.
- A number, date, name or condition must be the one in the context.
- Read a sentence as it is meant where it stands: `it` is what the sentences before speak of.
- Whether the response is useful, complete or well written plays no part.

The excerpt
Copy it from the context letter by letter: at least four words in a row, a whole sentence, or a whole row or cell of \
a table; do not reword, correct or translate it. Where it takes several passages, join them with ` ... ` between them, \
each of that length. Every excerpt is searched for in the context, and a label whose excerpt is not found there does \
not count."""
FORM: Final = """\
How to answer
Answer with JSON lines and nothing else: one object for each sentence, in the order of the response, each object on \
one line of its own; no code fence, no text before, between or after them. Inside a value, write quotation marks as \
\\" and line breaks as \\n. What stands behind // below explains \
a key and is no part of the answer. Where the form of your answer is enforced as a single object, the same objects \
stand in its list `sentences`. Each object has these four keys, in this order, written here one below the other to \
explain them:
{
  "sentence": "<text>",    // the sentence, copied from the response
  "label": "%s",
  "rationale": "<text>",   // why, in one short sentence of yours that does not repeat the excerpt
  "excerpt": "<text>"      // from the context, and from nowhere else; null, without quotation marks, where none is due
}"""
EXAMPLE: Final = """\
An example
Context: `The reading room opens at nine. Loans run for four weeks and can be renewed once.` Response: `Gladly! A loan \
takes four weeks, and you can renew it. The room opens at seven. Renewing is free.` The answer is:
{"sentence": "Gladly!", "label": "no_rad", "rationale": "A courtesy.", "excerpt": null}
{"sentence": "A loan takes four weeks, and you can renew it.", "label": "supported", "rationale": "Length and renewal \
are both given.", "excerpt": "Loans run for four weeks and can be renewed once."}
{"sentence": "The room opens at seven.", %s}
{"sentence": "Renewing is free.", "label": "%s", "rationale": "No price is mentioned.", "excerpt": null}"""

QUESTION: Final = """\
What does the context, in the parts `document`, say on sentence {number} of the part `response`? Read the sentence as \
it is meant where it stands. Only plain evidence counts, and knowledge from elsewhere only where it is trivial; a \
number, date, name or condition must be the one in the context."""
_SUPPORTED: Final = Option("supported", "The context says it, or it follows from the context with all that it says.")
_NO_RAD: Final = Option(
    "no_rad", "It states nothing that could be looked up: an opinion, a greeting, a question, a heading, a disclaimer."
)
OPTIONS: Final[Mapping[str, tuple[Option, ...]]] = {
    "v1": (
        _SUPPORTED,
        Option("unsupported", "The context does not prove it: it is silent on all or a part of it, or leaves it open."),
        Option("contradictory", "The context shows that it or a part of it is false."),
        _NO_RAD,
    ),
    "v2": (
        _SUPPORTED,
        Option(
            "not_supported",
            "The context does not prove it: it is silent, leaves it open or says otherwise, or the sentence is right "
            "only in part, wrongly attributed, one-sided or without a qualifier.",
        ),
        _NO_RAD,
    ),
}
"""The options of a decision model, by the name of the label set."""


class Menu(NamedTuple):
    """A set of labels."""

    labels: tuple[str, ...]  # In the order offered.
    lacking: str  # Label of a sentence without evidence, or whose evidence is not found.
    fixed: str  # The fixed part of the prompt.


class Line(NamedTuple):
    """The model's assessment of one sentence."""

    sentence: str
    label: str
    rationale: str
    excerpt: str | None


def _menu(labels: tuple[str, ...], lacking: str, rubric: str, false_sentence: str) -> Menu:
    form, example = FORM % "|".join(labels), EXAMPLE % (false_sentence, lacking)
    history = history_rules("the response", "the query")
    parts = (ROLE, TASK, f"{rubric}\n{WEIGHING}", history, MATERIAL_RULES, form, example)
    return Menu(labels, lacking, "\n\n".join(parts))


MENUS: Final[Mapping[str, Menu]] = {
    "v1": _menu(
        ("supported", "unsupported", "contradictory", "no_rad"),
        "unsupported",
        LABELS_V1,
        '"label": "contradictory", "rationale": "It opens two hours later.", '
        '"excerpt": "The reading room opens at nine."',
    ),
    "v2": _menu(
        ("supported", "not_supported", "no_rad"),
        "not_supported",
        LABELS_V2,
        '"label": "not_supported", "rationale": "It opens two hours later.", "excerpt": null',
    ),
}


def schema(menu: Menu) -> Mapping[str, object]:
    """Return the JSON schema of all lines as one object."""
    line = object_schema(
        {
            "sentence": {"type": "string"},
            "label": {"type": "string", "enum": list(menu.labels)},
            "rationale": {"type": "string"},
            "excerpt": {"type": ["string", "null"]},
        }
    )
    return object_schema({LIST_KEY: {"type": "array", "items": line}})


_MIN_COVERAGE: Final = 0.5
_MAX_LINES: Final = 1000  # More lines would make an answer longer than any that is parsed.
_MAX_PLACES: Final = 50  # Only the first sentences with a word are compared: a frequent word says little.
_COURTESY: Final = content_words("hello hi hey dear thanks thank welcome gladly sorry glad happy help hope great sure")
_MAX_COURTESY_CHARS: Final = 120
_WORD: Final = re.compile(r"\w+")

_OBJECT: Final = re.compile(r"\{(?=\s*\"sentence\")")
_DECODER: Final = json.JSONDecoder(strict=False)


def is_courtesy(sentence: str) -> bool:
    """Return whether a short sentence consists of courtesies in ten languages, or has no other words with a meaning."""
    if len(sentence) > _MAX_COURTESY_CHARS:
        return False
    words = content_words(sentence)
    return (bool(words) and words <= _COURTESY) or _courtesies().fullmatch(_folded(sentence)) is not None


@cache
def _courtesies() -> re.Pattern[str]:
    lines = files("judges.forms").joinpath("courtesies.txt").read_text("utf-8").splitlines()
    phrases = {_folded(each) for line in lines if line[:1] != "#" for each in line.partition(":")[2].split("|")}
    # The longest first: a phrase may begin with another.
    return re.compile(rf"(?:(?:{'|'.join(sorted(phrases, key=len, reverse=True))})(?: |\Z))++")


def _folded(text: str) -> str:
    return " ".join(_WORD.findall(simplify(text)))


def whole_lines(text: str) -> str:
    """Return the complete lines of an answer that was cut off, each once; drafts in its thoughts are none of them."""
    lines: dict[str, None] = {}
    text, position = answer_of(text) or "", 0
    while (opening := _OBJECT.search(text, position)) is not None:
        try:
            value, position = _DECODER.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            break
        if isinstance(value, dict) and value.keys() >= set(KEYS):
            lines[json.dumps(value, ensure_ascii=False)] = None
    return "\n".join(lines)


class ContextIndex:
    """The sentences that a response may draw on, with an index of their words and numbers."""

    def __init__(self, query: str, texts: Sequence[str]) -> None:
        self.sentences = tuple(sentence for text in texts for sentence in split(text))
        self.places: dict[str, list[int]] = defaultdict(list)
        for place, sentence in enumerate(self.sentences):
            for word in content_words(sentence):
                self.places[word].append(place)
        self.words = content_words(query) | self.places.keys()
        self.numbers = numbers("\n".join((query, *self.sentences)))

    def nearest(self, sentence: str) -> str | None:
        """Return the first of the sentences that share the most words with one; None without any."""
        words = content_words(sentence)
        shared = Counter(place for word in words for place in self.places.get(word, ())[:_MAX_PLACES])
        best = min(shared, key=lambda place: (-shared[place], place), default=None)
        return None if best is None else self.sentences[best]

    def label(self, menu: Menu, sentence: str) -> Line:
        """Label a sentence; the excerpt is the first of the sentences that share the most words with it."""
        words = content_words(sentence)
        if words <= _COURTESY or sentence.endswith(("?", "\uff1f", "\u061f")):
            reason = "It is a question, a courtesy, or holds no word that could be looked up."
            return Line(sentence, "no_rad", reason, None)
        if not numbers(sentence) <= self.numbers:
            return Line(sentence, menu.lacking, "It contains a number that context and query do not.", None)
        share, best = coverage(words, self.words), self.nearest(sentence)
        rationale = f"{share:.0%} of its words appear in context or query."
        if share < _MIN_COVERAGE or best is None:
            return Line(sentence, menu.lacking, rationale, None)
        return Line(sentence, "supported", rationale, best)


def guess(menu: Menu, response: str, query: str, texts: Sequence[str]) -> str:
    """Label each sentence of a response by the share of its words that occurs in context or query."""
    context = ContextIndex(query, texts)
    # A response without sentences must still be answered in the requested form.
    sentences = split(response) or ("",)
    lines = [context.label(menu, sentence) for sentence in sentences[:_MAX_LINES]]
    if len(sentences) > _MAX_LINES:
        rest = " ".join(sentences[_MAX_LINES:])
        lines.append(Line(rest, menu.lacking, "The heuristic looks no further.", None))
    return "\n".join(msgspec.json.encode(line._asdict()).decode() for line in lines)
