"""`tracejudge help`: pages of the documentation as text, from the wheel, or from the folder `docs` of a checkout."""

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from worker.base.commands.options import JSON, print_json

_PACKAGE: Final = Path(__file__).parents[2]
_LINK: Final = re.compile(r"!?\[([^\]]+)\]\([^)\s]+\)")
_NOTE: Final = re.compile(r"<!--.*?-->\n")


def _read() -> Iterator[tuple[str, str]]:
    # A page by its path, an alert by its name.
    folder = _PACKAGE / "pages" if (_PACKAGE / "pages").is_dir() else _PACKAGE.parent / "docs"
    for path in sorted(folder.rglob("*.md")):
        text = _LINK.sub(r"\1", _NOTE.sub("", path.read_text(encoding="utf-8")))
        yield path.relative_to(folder).with_suffix("").as_posix(), text
        for part in re.findall(r"^## (TraceJudge.+?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
            yield part.partition("\n")[0], f"# {part}"


TOPICS: Final = dict(_read())


@click.command()
@click.argument("topic", nargs=-1)
@JSON
def command(topic: tuple[str, ...], *, as_json: bool) -> None:
    """Print a page of the documentation as text, or the parts of all pages that have the words of TOPIC.

    TOPIC is the name of a page or of an alert, a code, a reason, a status, or what you see. Without it all topics are
    listed.
    """
    words = " ".join(topic)
    text = TOPICS.get(words) or _find(words)
    if words and not text:
        close = "".join(f" Did you mean {name!r}?" for name in difflib.get_close_matches(words, TOPICS, n=1))
        raise click.UsageError(f"No page has {words!r}; `tracejudge help` lists all.{close}")
    if as_json:
        return print_json({words: text} if words else list(TOPICS))
    titles = (f"{name:<34}{text.partition(chr(10))[0].removeprefix('# ')}" for name, text in TOPICS.items())
    return click.echo_via_pager((text or "\n".join(titles)).rstrip("\n"))


def _find(words: str) -> str:
    """Return the parts that have all words: rows of tables that begin with them, else sections, else paragraphs."""
    tests = [re.compile(rf"(?<!\w){re.escape(word)}", re.IGNORECASE) for word in words.split()]
    rows, sections, parts = dict[str, str](), dict[str, str](), dict[str, str]()
    for name in (name for name in TOPICS if tests and not name.startswith(("TraceJudge", "reference/measured"))):
        for section in re.split(r"^(?=##+ )", TOPICS[name], flags=re.MULTILINE):
            title, _, body = section.partition("\n")
            place = f"{name}, {title.lstrip('# ')}"
            if all(test.search(title) for test in tests):
                sections.setdefault(body, place)
            for part in re.split(r"\n(?=[|-])|\n\n+", body):
                if all(test.search(part) for test in tests):
                    codes = re.findall(r"`(.+?)`", part.split(" | ")[0]) if part.startswith("|") else ()
                    (rows if words in codes else parts).setdefault(part, place)
    best = [*(rows or sections or parts).items()][:10]
    shown = {place for _, place in best}
    others = dict.fromkeys(place for place in (rows | sections | parts).values() if place not in shown)
    more = "; ".join([*others][:10])
    return "\n\n".join([f"{place}\n{part.strip()}" for part, place in best] + [f"See also: {more}"] * bool(more))
