"""What runbooks consist of: pages, and in them one part for each alert with its code, quotes and names of alerts."""

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "runbooks"

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)\)", re.DOTALL)
_ALERT = re.compile(r"\bTraceJudge[A-Z]\w*")
_PANEL = re.compile(r'"([^"]+)"')


class Page:
    """A page, or the part of a page about one alert."""

    def __init__(self, path: Path, alert: str = "") -> None:
        self.path = path
        self.alert = alert
        self.text = path.read_text(encoding="utf-8")
        if alert:
            self.text = self.text.split(f"\n## {alert}\n")[1].split("\n## ")[0]

    def __repr__(self) -> str:
        return self.alert or self.path.stem

    @cached_property
    def blocks(self) -> list[tuple[str, str]]:
        """The language and the text of each block of code."""
        return [(matches[2], matches[3]) for matches in _BLOCK.finditer(self.text)]

    @cached_property
    def prose(self) -> str:
        """Everything but the blocks."""
        return _BLOCK.sub("", self.text)

    @property
    def quotes(self) -> set[str]:
        """What stands in backticks."""
        return set(_QUOTED.findall(self.prose))

    @property
    def queries(self) -> list[str]:
        return [text for language, text in self.blocks if language == "promql"]

    @property
    def commands(self) -> list[str]:
        """Lines for a shell, of blocks and of quotes."""
        lines = [line.strip() for language, text in self.blocks if language == "sh" for line in text.splitlines()]
        return lines + [quote for quote in self.quotes if quote.startswith(("tracejudge ", "docker "))]

    @property
    def panels(self) -> set[str]:
        """Titles of the dashboards, which alone stand in double quotes."""
        return set(_PANEL.findall(_QUOTED.sub("", self.prose)))

    @property
    def links(self) -> list[Path]:
        targets = [target for target in _LINK.findall(self.prose) if "://" not in target]
        return [(self.path.parent / target).resolve() for target in targets]

    @property
    def certainty(self) -> str:
        """The paragraph that says how sure the alert is, on one line."""
        match = re.search(r"^\*\*How sure\.\*\* (.+?)\n\n", self.text, re.MULTILINE | re.DOTALL)
        assert match, f"{self} does not say how sure it is"
        return " ".join(match[1].split())

    def long_lines(self) -> set[str]:
        """Lines that say so much that no other alert should say the same."""
        return {line.strip() for line in self.prose.splitlines() if len(line.strip()) > 70}


def pages() -> list[Page]:
    """Every page."""
    return [Page(path) for path in sorted(FOLDER.glob("*.md"))]


def alerts() -> list[Page]:
    """The part of each alert, by its name."""
    parts = [Page(page.path, alert) for page in pages() for alert in re.findall(r"^## (\w+)$", page.text, re.MULTILINE)]
    return sorted(parts, key=repr)


def alerts_in(text: str) -> Iterator[str]:
    """The alerts that a text names, each once, in its order."""
    yield from dict.fromkeys(_ALERT.findall(text))
