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
@click.argument("topic", required=False, metavar="[TOPIC]")
@JSON
def command(topic: str | None, *, as_json: bool) -> None:
    """Print a page of the documentation as text.

    TOPIC is the name of a page or of an alert. Without it all topics are listed.
    """
    if topic is not None and topic not in TOPICS:
        close = "".join(f" Did you mean {name!r}?" for name in difflib.get_close_matches(topic, TOPICS, n=1))
        heading = re.compile(rf"^#+ .*{re.escape(topic)}", re.MULTILINE | re.IGNORECASE)
        about = ", ".join(name for name, text in TOPICS.items() if heading.search(text))
        pages = f" Pages with this word in a heading: {about}." if about else ""
        raise click.UsageError(f"There is no page {topic!r}; `tracejudge help` lists all.{pages or close}")
    if as_json:
        return print_json({topic: TOPICS[topic]} if topic else list(TOPICS))
    titles = (f"{name:<34}{text.partition(chr(10))[0].removeprefix('# ')}" for name, text in TOPICS.items())
    return click.echo_via_pager((TOPICS[topic] if topic else "\n".join(titles)).rstrip("\n"))
