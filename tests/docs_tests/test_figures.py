"""Figures of written pages: behind a setting stands its default, and two pages do not give one fact two values."""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from pages import PAGES, ROOT

TIMES = {"s": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "day": 86_400, "week": 604_800}
SIZES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 1e3, "MB": 1e6, "GB": 1e9}
COUNTS = ("%", "ms", "µs", "token", "point", "label", "trace", "verdict", "judgement", "USD", "character")
UNITS = TIMES | SIZES | dict.fromkeys(COUNTS, 1)
FIGURE = re.compile(rf"(?<![\w.,-])(\d[\d,]*(?:\.\d+)?) ?({'|'.join(sorted(UNITS, key=len, reverse=True))})s?(?!\w)")
DEFAULT = re.compile(r"`([a-z_]+)` \((?:default )?(\d[\d,]*(?:\.\d+)?)(?: ([a-zA-Z]+?)s?)?(?: by default)?\)")
SMALL_WORDS = re.compile(
    r"(a|about|all|an|and|are|as|at|be|by|each|for|from|has|have|if|in|is|it|its|judges?|least|less|models?|more|most|not|of|on"
    r"|one|only|or|per|s|so|some|than|that|the|then|they|this|to|traces?|up|verdicts?|was|when|where|which|while|with)|\d.*"
)
ALIKE = 3
DIFFER = [{"over", "takes"}, {"another", "worker"}, {"failures", "objective", "allows"}]
"""Words around figures of different facts."""


class Figure(NamedTuple):
    """A figure of a page with its unit, and the words of its sentence around it."""

    page: str
    value: float
    unit: str
    words: frozenset[str]
    sentence: str


def written() -> Iterator[tuple[str, str]]:
    """Yield the prose of each written page; the durations of runbooks are compared with the table of objectives."""
    for name, text in PAGES.items():
        if name.startswith("docs/") and not name.startswith(("docs/reference/", "docs/runbooks/", "docs/examples/")):
            yield name, re.sub(r"\]\([^)]*\)", "]", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def figures() -> Iterator[Figure]:
    for page, text in written():
        # A setting's own figure is the other test's.
        prose = re.sub(r"(`[a-z_]+`) \([^)]*\)", r"\1", text)
        for sentence in re.split(r"(?<=[.:])\s|\n\n|\n *- |\|", prose):
            for found in FIGURE.finditer(sentence):
                before = re.findall(r"\w+", sentence[: found.start()].lower())[-7:]
                around = {*before, *re.findall(r"\w+", sentence[found.end() :].lower())[:5]}
                words = frozenset(word for word in around if not SMALL_WORDS.fullmatch(word))
                unit = "time" if found[2] in TIMES else "size" if found[2] in SIZES else found[2]
                yield Figure(page, float(found[1].replace(",", "")) * UNITS[found[2]], unit, words, sentence)


def test_a_figure_behind_a_setting_is_its_default() -> None:
    defaults: dict[str, set[float]] = {}
    for page in ("configuration", "judges"):
        text = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
        for name, default in re.findall(r"^\| (?:`\w+` \| )?`(\w+)` \| `([\d.]+)` \|", text, re.MULTILINE):
            defaults.setdefault(name, set()).add(json.loads(default))
    found = [(page, match) for page, text in written() for match in DEFAULT.finditer(" ".join(text.split()))]
    wrong = [
        f"{page}: {match[0]}, not {defaults[match[1]]}"
        for page, match in found
        if match[1] in defaults
        and float(match[2].replace(",", "")) * UNITS.get(match[3] or "", 1) not in defaults[match[1]]
    ]
    assert wrong == []
    assert len(found) > 15


def test_two_pages_agree_on_a_figure() -> None:
    wrong = [
        f"{one.page}: {' '.join(one.sentence.split())}\n  {other.page}: {' '.join(other.sentence.split())}"
        for one, other in combinations(figures(), 2)
        if one.page != other.page and one.unit == other.unit and one.value != other.value
        if len(one.words & other.words) >= ALIKE
        if not any(words <= one.words & other.words for words in DIFFER)
    ]
    assert wrong == [], "\n".join(wrong)
