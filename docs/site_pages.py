"""Hooks of MkDocs: pages and files outside `docs/` that pages link to, diagrams as pictures, and old addresses.

Links in the pages are relative to the repository, so that they work in its view too. What they name outside `docs/` is
copied to `repository/` on the site, Markdown as a page, a folder as a page that lists its files. `moved.toml` names the
page and heading that took the place of an old one.
"""

import json
import posixpath
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from docs import diagrams

_ROOT: Final = Path(__file__).parent.parent
_LINK: Final = re.compile(r"(\]\()(?!https?://|#|mailto:)([^)#\s]+)([^)]*\))")
_FENCE: Final = re.compile(r"^( *)(```+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_ITEM: Final = re.compile(r"(?:[-*]|\d+\.) (?! )")
_COPIES: Final = "repository"
# Pages that alerts and other pages lead to: the search shows guides first.
_LATER: Final = ("runbooks/", "reference/", "spine", "statistics", "changing", "glossary")
_MOVED: Final = (
    '<!doctype html><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">This page has moved.</a>\n'
)
_UNLISTED: Final = InclusionLevel.NOT_IN_NAV
_sources: dict[str, str] = {}
"""The place in the repository of each page, by its place on the site."""


def on_config(config: MkDocsConfig) -> None:
    """Leave out pages that do not exist.

    A misspelt page is found all the same: MkDocs then warns of the real one, which has no place in the navigation.
    """
    config.nav = _existing(config.nav)


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add what pages link to outside `docs/`, and what is linked from there."""
    _sources.clear()
    waiting = [f"docs/{page.src_uri}" for page in files.documentation_pages()]
    waiting += [path for path in _paths(config.nav) if path.startswith(f"{_COPIES}/")]
    while waiting:
        source = waiting.pop().removeprefix(f"{_COPIES}/")
        place = _place(source)
        if place in _sources:
            continue
        _sources[place] = source
        path = _ROOT / source
        if not place.startswith(f"{_COPIES}/"):
            text = path.read_text(encoding="utf-8")
        elif path.is_dir():
            text = _listing(path)
            files.append(File.generated(config, place, content=text, inclusion=_UNLISTED))
        else:
            text = path.read_text(encoding="utf-8") if path.suffix == ".md" else ""
            files.append(File.generated(config, place, abs_src_path=str(path), inclusion=_UNLISTED))
        found = (posixpath.normpath(posixpath.join(_folder(source), link[2])) for link in _LINK.finditer(_prose(text)))
        waiting += [linked for linked in found if not linked.startswith(("docs/", "../")) and (_ROOT / linked).exists()]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - MkDocs' signature
    """Replace diagrams by their pictures, and links by those of the site."""
    place = page.file.src_uri
    folder = _folder(_sources[place])
    if place.startswith((f"{_COPIES}/", "reference/measured/")):
        page.meta["search"] = {"exclude": True}
    elif place.startswith(_LATER):
        page.meta["search"] = {"boost": 0.3}

    def relinked(found: re.Match[str]) -> str:
        linked = _place(posixpath.normpath(posixpath.join(folder, found[2])))
        return f"{found[1]}{posixpath.relpath(linked, posixpath.dirname(place))}{found[3]}"

    parts = []
    for text, is_code in _parts(_in_fours(markdown)):
        if not is_code:
            parts.append(_LINK.sub(relinked, text))
        elif text.startswith("```mermaid\n"):
            parts.append(f'<figure class="diagram" markdown="0">{diagrams.picture(text)}</figure>\n')
        else:
            parts.append(text)
    return "".join(parts)


def on_post_build(config: MkDocsConfig) -> None:
    """Write a page that leads on at each old address, and let the search accept whole questions."""
    _accept_questions(Path(config.site_dir))
    for old, new in moved().items():
        path = Path(config.site_dir, old).with_suffix(".html")
        path.parent.mkdir(parents=True, exist_ok=True)
        place = posixpath.relpath(new.replace(".md", ".html"), posixpath.dirname(old))
        path.write_text(_MOVED.format(place), encoding="utf-8")


def _accept_questions(site: Path) -> None:
    """Leave out the words that the index leaves out, find whole words too, and let text count beside headings."""
    (worker,) = site.joinpath("assets/javascripts/workers").glob("search.*.js")
    script, index = worker.read_text(encoding="utf-8"), site / "search/search_index.json"
    # The search completes each word: `my` would find `mypy`, and `a` most of the titles.
    stop_words = "|".join(re.findall(r"\w+", script.partition("generateStopWordFilter([")[2].partition("]")[0]))
    ignored = rf"/(?<!\S)(?:{stop_words})(?![^\s?,;:.])|'s(?!\w)|[?,;:.]+(?!\S)/gi"
    for old, new in (
        ('.trim().split(/"([^"]+)"/g)', f'.replace({ignored}," ").trim().split(/"([^"]+)"/g)'),
        ("?r:`${r}*`)", "?r:`${r} ${r}*`)"),
    ):
        if not stop_words or script.count(old) != 1:
            raise PluginError("the search of Material for MkDocs has changed: adapt docs/site_pages.py")
        script = script.replace(old, new)
    worker.write_text(script, encoding="utf-8")
    content = json.loads(index.read_text(encoding="utf-8"))
    content["config"]["fields"]["title"]["boost"] = 5.0
    index.write_text(json.dumps(content), encoding="utf-8")


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as repositories and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def moved() -> dict[str, str]:
    """Return the new place of each page that is gone, as `page.md#heading` below `docs/`."""
    return tomllib.loads((_ROOT / "docs" / "moved.toml").read_text(encoding="utf-8"))


def _in_fours(markdown: str) -> str:
    """Indent what belongs to an item of a list by four spaces, as Python-Markdown wants it, instead of its marker."""
    lines, width, is_code = [], 0, False
    for line in markdown.splitlines():
        is_code ^= line.startswith("```")
        if width and line.startswith(" " * width) and not is_code:
            lines.append(f"{' ' * 4}{line[width:]}")
            continue
        lines.append(line)
        if line.strip():
            marker = _ITEM.match(line)
            width = len(marker[0]) if marker and not is_code else 0
    return "\n".join(lines) + "\n"


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Split a page into prose and fenced code."""
    end = 0
    for fence in _FENCE.finditer(text):
        yield text[end : fence.start()], False
        yield fence[0], True
        end = fence.end()
    yield text[end:], False


def _prose(text: str) -> str:
    return "".join(part for part, is_code in _parts(text) if not is_code)


def _folder(source: str) -> str:
    # The links of a folder's page are relative to the folder itself.
    return source if (_ROOT / source).is_dir() else posixpath.dirname(source)


def _place(source: str) -> str:
    """Return the place on the site of a file of the repository."""
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    is_folder = (_ROOT / source).is_dir()
    return f"{_COPIES}/{source}/index.md" if is_folder else f"{_COPIES}/{source}"


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith((".", "__")))
    lines = "\n".join(f"- [{name}]({name})" for name in names)
    return f"# {folder.relative_to(_ROOT)}\n\n{lines}\n"


def _existing(nav: Any) -> list[Any]:
    found = []
    for item in nav:
        for title, inner in item.items():
            if isinstance(inner, list):
                found.append({title: _existing(inner)})
            elif inner.startswith(f"{_COPIES}/") or (_ROOT / "docs" / inner).exists():
                found.append(item)
    return found


def _paths(nav: Any) -> Iterator[str]:
    for item in nav:
        if isinstance(item, str):
            yield item
        else:
            for inner in item.values():
                yield from [inner] if isinstance(inner, str) else _paths(inner)
