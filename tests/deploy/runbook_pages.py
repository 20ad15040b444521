"""What a runbook consists of: its headings, its code, what it quotes, and which alerts it names."""

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "runbooks"
HEADINGS = ("How sure it is", "Look first", "Causes", "When to ignore it", "Silences")

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)\)", re.DOTALL)
_ALERT = re.compile(r"\bTraceJudge[A-Z]\w*")
_PANEL = re.compile(r'"([^"]+)"')


class Page:
    """One page."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")

    def __repr__(self) -> str:
        return self.path.stem

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

    @cached_property
    def headings(self) -> list[str]:
        return re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE)

    def part(self, heading: str) -> str:
        """What stands below a heading, on one line."""
        match = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", self.prose, re.MULTILINE | re.DOTALL)
        assert match, f"{self}: no part {heading}"
        return " ".join(match[1].split())

    def long_lines(self) -> set[str]:
        """Lines that say so much that no other page should say the same; who silences whom is a list of names."""
        section = self.prose.partition("\n## Silences\n")[0]
        return {line.strip() for line in section.splitlines() if len(line.strip()) > 70}


def pages() -> list[Page]:
    """Every page but the index."""
    return [Page(path) for path in sorted(FOLDER.glob("*.md")) if path.name != "README.md"]


def alerts_in(text: str) -> Iterator[str]:
    """The alerts that a text names, each once, in its order."""
    yield from dict.fromkeys(_ALERT.findall(text))
