"""Check the documentation against the tree, both ways.

What pages name exists: links, commands with their options, targets of make, metrics, models. Those models have prices
as the table of models says, and do not leave their makers' APIs soon. What exists is documented: each
command, option, key and metric has a description in the reference, each command a page that tells when to use it, each
reason and event a meaning. Nothing names this machine, and the built site, where there is one, loads nothing from other
hosts.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Final

import click

from docs import commands, errors, site_pages
from docs.metrics import all_metrics
from judges.models.registry import known_model
from worker.base.commands import groups

_ROOT: Final = Path(__file__).parent.parent
_LINK: Final = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
# A line that shows a mistake says how it ends.
_VERB: Final = re.compile(r"^\s*(?:\$ )?(?:\.venv/bin/)?tracejudge ([a-z]+)(?!.*# exit code 2)", re.MULTILINE)
_TARGET: Final = re.compile(r"\bmake ([a-z]+)\b")
_CODE: Final = re.compile(r"```([a-z]*)\n(.*?)```|`([^`\n]+)`", re.DOTALL)
_CALL: Final = re.compile(r"\btracejudge ((?:[a-z]+(?![\w.-]) ?){1,2})([^\n|;&#`$]*)")
_OPTION: Final = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
_METRIC: Final = re.compile(r"\btracejudge_[a-z0-9_]+")
_SUFFIX: Final = re.compile(r"_(?:bucket|sum|count|total|info)$")
_EMPTY_ROW: Final = re.compile(r"^\| `[^|]*\|(?: *\|)+$|^\| `.*\| *\|$", re.MULTILINE)
_SOURCE: Final = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["']?(https?:|//)""")
_URL: Final = re.compile(r"""url\(["']?(https?:|//)""")
_SITE: Final = _ROOT / "site"
# Names in the form of a metric that are none.
_NO_METRICS: Final = frozenset({"tracejudge_pause", "tracejudge_resume", "tracejudge_worker"})
# Models of makers that end them. Names of tests and measurements are not taken from the table.
_MODEL: Final = re.compile(
    r"(?<![\w-])(?:(?:gpt|chatgpt|claude|gemini|grok)-[a-z0-9.-]*\d[a-z0-9.-]*\b|o[1-9](?:-\w+)?(?=\"))"
)
_PRICED: Final = re.compile(r'^\W*model = "([^"]+)"\n(?:.*\n){0,3}?\W*(price = \{[^}]*\})', re.MULTILINE)
_NAMING: Final = ("README.md", "docs/", "deploy/", "judges/", "worker/", "benchmarks/")
_TABLE: Final = _ROOT / "judges" / "models" / "known.toml"
_WARN_DAYS: Final = 60
_FAIL_DAYS: Final = 14
_MACHINE_PATH: Final = re.compile(r"(?<![\w.])/(?:root|home|work|Users)/\w+")


def main() -> int:
    """Print what is wrong, one line each; 1 when something is."""
    problems = [problem for path in _tracked() for problem in _problems(path)]
    problems += [*_undocumented(), *errors.problems(), *_moved(), *_foreign()]
    today = datetime.now(UTC).date()
    for path in _tracked():
        if _name(path).startswith(_NAMING) and path not in (_TABLE, Path(__file__)) and path.suffix != ".svg":
            wrong, soon = model_problems(_name(path), path.read_text(encoding="utf-8", errors="replace"), today)
            problems += wrong
            print(*(f"warning: {one}" for one in soon), sep="\n", end="\n" if soon else "")
    print("\n".join(problems) or "documentation: no problem found")
    return int(bool(problems))


def _tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=_ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    return [_ROOT / name for name in listed.stdout.splitlines() if (_ROOT / name).is_file()]


def _problems(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    if path != Path(__file__):
        yield from (f"{_name(path)}: names a path of a machine: {path_[0]}" for path_ in _MACHINE_PATH.finditer(text))
    if path.suffix == ".md":
        for found in _LINK.finditer(text):
            target = path.parent / found[1] if found[1] else path
            if not target.exists():
                yield f"{_name(path)}: link leads nowhere: {found[1]}"
            elif found[2] and target.suffix == ".md" and found[2] not in _anchors(target):
                yield f"{_name(path)}: there is no heading {found[1]}#{found[2]}"
        for code in _CODE.finditer(text):
            # Prompts, which are fenced as text, speak of other things than commands.
            if code[1] != "text":
                yield from _wrong_commands(path, code[2] or code[3])


def model_problems(name: str, text: str, today: date) -> tuple[list[str], list[str]]:
    """Name models of a text that the table lacks, that are priced otherwise or end soon; and those that end later."""
    wrong: list[str] = []
    soon: list[str] = []
    for model in sorted(set(_MODEL.findall(text))):
        known = known_model(model)
        days = (known["end"] - today).days if "end" in known else _WARN_DAYS + 1
        if not known:
            wrong.append(f"{name}: {model} is not in {_TABLE.name}")
        elif days <= _WARN_DAYS:
            (wrong if days <= _FAIL_DAYS else soon).append(f"{name}: {model} leaves its maker's API on {known['end']}")
    for model, written in _PRICED.findall(text):
        price = known_model(model).get("price")
        if price is not None and tomllib.loads(written)["price"] != price:
            wrong.append(f"{name}: {_TABLE.name} has another price of {model}: {written}")
    return wrong, soon


@cache
def _anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings."""
    return frozenset(map(site_pages.anchor, _HEADING.findall(page.read_text(encoding="utf-8"))))


def _wrong_commands(path: Path, code: str) -> Iterator[str]:
    for verb in _VERB.findall(code):
        if verb not in groups.commands():
            yield f"{_name(path)}: there is no `tracejudge {verb}`"
    for words, rest in _CALL.findall(code.replace("\\\n", " ")):
        known = _options(words)
        for option in _OPTION.findall(rest) if known else ():
            if option not in known:
                yield f"{_name(path)}: `tracejudge {words.strip()}` has no option {option}"
    makefile = (_ROOT / "Makefile").read_text(encoding="utf-8")
    for target in _TARGET.findall(code):
        if re.search(rf"^{target}:", makefile, re.MULTILINE) is None:
            yield f"{_name(path)}: there is no `make {target}`"


def _options(words: str) -> frozenset[str]:
    """Return the options of the command that begins with these words; none where there is no such command."""
    found: Mapping[str, click.Command] = dict(commands.each_command())
    for name in (f"tracejudge {words.strip()}", f"tracejudge {words.split(maxsplit=1)[0]}"):
        if name in found:
            options = (one for one in found[name].params if isinstance(one, click.Option))
            names = {name for one in options for name in (*one.opts, *one.secondary_opts)}
            return frozenset({*names, "--help", "-h"})
    return frozenset()


@cache
def _metrics() -> frozenset[str]:
    return frozenset(metric.full_name for metric in all_metrics())


def _undocumented() -> Iterator[str]:
    """Name what exists and no page describes."""
    reference = sorted((_ROOT / "docs" / "reference").glob("*.md"))
    pages = [path for path in _tracked() if path.suffix == ".md" and path not in reference]
    prose = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    for name, _ in commands.each_command():
        if name not in prose:
            yield f"no page says when to use `{name}`"
    for path in reference:
        for row in _EMPTY_ROW.findall(path.read_text(encoding="utf-8")):
            yield f"{_name(path)}: without a description: {row}"
    rules = "\n".join(path.read_text(encoding="utf-8") for path in (_ROOT / "deploy" / "prometheus").rglob("*.yaml"))
    for path in pages:
        for metric in _METRIC.findall(path.read_text(encoding="utf-8")):
            stem = _SUFFIX.sub("", metric)
            is_known = bool({metric, stem, f"{stem}_total"} & _metrics()) or metric in rules or metric in _NO_METRICS
            if not is_known and not metric.endswith("_"):
                yield f"{_name(path)}: there is no metric {metric}"


def _moved() -> Iterator[str]:
    """Name old addresses that lead nowhere, or that a page still has."""
    for old, new in site_pages.moved().items():
        page, _, heading = new.partition("#")
        target = _ROOT / "docs" / page
        if (_ROOT / "docs" / old).exists() or not target.exists() or (heading and heading not in _anchors(target)):
            yield f"docs/moved.toml: {old} cannot lead to {new}"


def _foreign() -> Iterator[str]:
    """Name what the built site would load from another host."""
    for path in (*_SITE.rglob("*.html"), *_SITE.rglob("*.css"), *_SITE.rglob("*.svg")):
        text = path.read_text(encoding="utf-8")
        for found in (*_SOURCE.finditer(text), *_URL.finditer(text)):
            yield f"{_name(path)}: loads from another host: {text[found.start() : found.start() + 100]}"


def _name(path: Path) -> str:
    return str(path.relative_to(_ROOT))


if __name__ == "__main__":
    sys.exit(main())
