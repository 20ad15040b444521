"""The runbooks: a part for each alert, and what they name exists: commands, queries, panels, settings, log lines."""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import yaml
from alert_scenes import alert_names, every_rule
from queries import dashboards, named_metrics, panels
from support.cases import each_case
from support.scrape import samples_of

import tracejudge
from deploy.rules.alert_settings import PATH as TABLE
from deploy.rules.rule_files import FOLDER as RULES
from deploy.rules.templates import RATED
from docs.metrics import worker_metrics
from worker.base.accounting import Account
from worker.cli import cli
from worker.core.config.settings import Settings
from worker.core.telemetry.metrics import OUTCOMES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "runbooks"
FILES = sorted(RULES.glob("*.yaml"))
ALERTS = alert_names(FILES)
GUIDE = (FOLDER.parent / "alerts.md").read_text(encoding="utf-8")
OTHER_LABELS = "reference outcome reason status role exporter rule direction le what budget limit partition"
LABELS = {*RATED, *re.findall(r"\w+", OTHER_LABELS)}
PROMETHEUS = {"ALERTS", "alertname", "alertstate", "component", "instance", "job", "severity"}
WORDS_OF_PROMQL = re.compile("by|on|and|or|unless|ignoring|group_left|group_right|offset|without|bool")
MOST_LINES = 40
EXEC = "docker compose -f deploy/compose.yaml exec worker "
URLS = re.compile(r"curl -s http://localhost:9808/(metrics|readyz|healthz)")

BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`([^`\n]+)`")


class Page:
    """A page, or the part of a page about one alert, with its code, quotes and names of alerts."""

    def __init__(self, path: Path, alert: str = "") -> None:
        self.path, self.alert = path, alert
        self.text = path.read_text(encoding="utf-8")
        if alert:
            self.text = self.text.split(f"\n## {alert}\n")[1].split("\n## ")[0]
        self.prose = BLOCK.sub("", self.text)
        self.quotes = set(QUOTED.findall(self.prose))
        self.queries = self._blocks("promql")
        lines = [line.strip() for block in self._blocks("sh") for line in block.splitlines()]
        # Lines for a shell, of blocks and of quotes.
        self.commands = lines + [quote for quote in self.quotes if quote.startswith(("tracejudge ", "docker "))]

    def __repr__(self) -> str:
        return self.alert or self.path.stem

    @cached_property
    def certainty(self) -> str:
        """The paragraph that says how sure the alert is, on one line."""
        match = re.search(r"^\*\*How sure\.\*\* (.+?)\n\n", self.text, re.MULTILINE | re.DOTALL)
        assert match, f"{self} does not say how sure it is"
        return " ".join(match[1].split())

    def _blocks(self, language: str) -> list[str]:
        return [text for _, name, text in BLOCK.findall(self.text) if name == language]


PAGES = [Page(path) for path in sorted(FOLDER.glob("*.md"))]
PARTS = sorted(
    (Page(page.path, alert) for page in PAGES for alert in re.findall(r"^## (\w+)$", page.text, re.MULTILINE)), key=repr
)
each_page = each_case("page", PAGES, ids=repr)
each_alert = each_case("part", PARTS, ids=repr)


def alerts_in(text: str) -> list[str]:
    """Return the alerts that a text names, each once, in its order."""
    return list(dict.fromkeys(re.findall(r"\bTraceJudge[A-Z]\w*", text)))


@each_alert
def test_form(part: Page) -> None:
    """Each alert has its meaning, how sure it is, what to look at, causes as a list, and when to ignore it."""
    text = part.text.replace("**Never ignore it**", "**Ignore it**")
    assert re.findall(r"^\*\*([^*]+)\*\*", text, re.MULTILINE) == ["How sure.", "Look first.", "Ignore it"]
    assert len(text.splitlines()) <= MOST_LINES
    first, look, causes, ignore = (text.find(begin) for begin in ("**How sure", "**Look", "\n- ", "**Ignore"))
    assert len(text[:first]) <= 240
    assert first < look < causes < ignore
    assert part.queries


def test_the_guide_lists_each_alert_with_its_severity_and_leads_to_its_part() -> None:
    assert [part.alert for part in PARTS] == ALERTS
    severities: dict[str, set[str]] = {}
    for rule in (file for file in every_rule(FILES) if "alert" in file):
        severities.setdefault(rule["alert"], set()).add(rule["labels"]["severity"])
    rows = [(row[1], row[2]) for row in (line.split("|") for line in GUIDE.splitlines()) if len(row) > 2]
    listed = [(name, set(severity.strip().split(" or "))) for cell, severity in rows for name in alerts_in(cell)]
    assert sorted(name for name, _ in listed) == ALERTS
    assert dict(listed) == severities
    links = re.findall(r"\[`(\w+)`\]\(runbooks/([\w-]+\.md)#(\w+)\)", GUIDE)
    assert sorted(links) == [(part.alert, part.path.name, part.alert.lower()) for part in PARTS]


@each_page
def test_links_panels_and_quotes_stand_somewhere(page: Page) -> None:
    """A single word is a setting, a label, a reason or the like; a line of a log or of an answer stands in the code."""
    links = re.findall(r"\[[^\]]*\]\(([^)#\s]+)\)", page.prose, re.DOTALL)
    assert [link for link in links if "://" not in link and not (page.path.parent / link).exists()] == []
    assert set(alerts_in(page.text)) <= set(ALERTS)
    # Titles of the dashboards, which alone stand in double quotes.
    titles = {
        panel["title"] for dashboard in dashboards().values() for panel in (*dashboard["panels"], *panels(dashboard))
    }
    assert set(re.findall(r'"([^"]+)"', QUOTED.sub("", page.prose))) <= titles
    for quote in page.quotes:
        if quote.startswith(("tracejudge ", EXEC)):
            continue  # a command
        word = re.fullmatch(r"([a-z_]+)(?: = .+)?", quote)
        assert word[1] in vocabulary() if word else quote in source(), quote


@each_page
def test_commands_can_be_given(page: Page) -> None:
    """The command line parses each command with its arguments; none is run.

    A person on call reads the failures of this alert, not those of all services.
    """
    for line in page.commands:
        words = shlex.split(line.partition(" | ")[0].removeprefix(EXEC), comments=True)
        if words[0] == "curl":
            assert URLS.fullmatch(shlex.join(words)), line
            continue
        assert words.pop(0) == "tracejudge", line
        assert ("--last" in words) <= ("--no-follow" in words), f"{line}: it would not end"
        parse([str(TABLE) if word == "FILE" else word for word in words])
        if line.startswith("tracejudge tail --failed"):
            assert "--judge " in line, line
            assert "--service " in line or "`" + line + "`" in page.prose, line


def parse(words: list[str]) -> None:
    command: click.Command = cli
    name = "tracejudge"
    # Below a context of the whole: a command keeps the help option of the first context that it gets.
    context = click.Context(cli, info_name=name, help_option_names=list(cli.context_settings["help_option_names"]))
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        result = command.get_command(context, name)
        assert result, f"no command {name}"
        command = result
    with command.make_context(name, words, parent=context):
        pass


@each_page
def test_queries_are_of_what_exists(page: Page) -> None:
    """Queries use exported or recorded series and their labels only."""
    for query in page.queries:
        assert named_metrics(query) <= series(), query
        rest = re.sub(r'"[^"]*"|\[[^\]]*\]|\b(tracejudge[_:][\w:]+|up|\d+[smhdw]?)\b', " ", query)
        words = re.findall(r"\b([a-z_]\w*)\b(?! *\(| by\b)", rest)
        assert {word for word in words if not WORDS_OF_PROMQL.fullmatch(word)} <= LABELS | PROMETHEUS, query


def test_promtool_accepts_the_queries(promtool: str, tmp_path: Path) -> None:
    """All in one file of rules, each under the name of its alert."""
    rules = [{"record": f"{part}:{place}", "expr": query} for part in PARTS for place, query in enumerate(part.queries)]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "runbooks", "rules": rules}]}), encoding="utf-8")
    checked = subprocess.run(
        [promtool, "check", "rules", "--lint=none", str(path)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@each_alert
def test_figures_are_those_of_the_table(part: Page) -> None:
    """Each alert names its row of the table, every figure and duration in it, and its severity."""
    for figure in figures(part):
        assert re.search(rf"(?<![\w.,]){re.escape(figure)}(?![\w.]*\w)", part.certainty), f"no {figure} in {part}"
    words = {"page": "page", "ticket": "ticket", "info": "Information"}
    for rule in rules_of(part):
        assert words[rule["labels"]["severity"]] in part.certainty


def figures(part: Page) -> Iterator[str]:
    """Yield the values of the alert's row of the table as they are written in a text."""
    table: Any = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    match = re.search(r"Set in `\[([a-z_.]+)\]`\.$", part.certainty)
    assert match, "no `[row]` of objectives.toml"
    row = table
    for name in match[1].split("."):
        row = row[name]
    exprs = " ".join(rule["expr"] for rule in rules_of(part))
    for key, value in row.items():
        if value != "0s" and (key != "window" or value in exprs):
            yield written(value)
    if match[1].startswith("burn."):
        yield written(table["min_judgements"])


def written(value: float | str) -> str:
    if isinstance(value, str):
        return value
    # Integers are counts; other bounds are shares.
    return f"{100 * value:g}" if isinstance(value, float) and value < 2 else f"{value:,}"


def test_silences_are_those_of_alertmanager() -> None:
    """The list of the guide names exactly the pairs of alerts that an inhibition of the example binds."""
    listed = GUIDE.split("\n## Which alert silences which\n")[1].split("\n## ")[0]
    shares, listed = listed.split("*The shares* are ")[1].split("\n\n")
    pairs = re.findall(
        r"^- (.+?) silences?(?= )(.+?)(?=^-|\Z)", listed.replace("*the shares*", shares), re.MULTILINE | re.DOTALL
    )
    named = {(source, target) for one, other in pairs for source in alerts_in(one) for target in alerts_in(other)}
    assert {(source, target) for source, target in named if source != target} == inhibited()


def inhibited() -> set[tuple[str, str]]:
    """Return pairs of an alert and one that it silences, by the labels of the rules."""
    config = yaml.safe_load((ROOT / "deploy" / "alertmanager" / "alertmanager.yml").read_text(encoding="utf-8"))
    labels_of_alerts = [{"alertname": rule["alert"], **rule["labels"]} for rule in every_rule(FILES) if "alert" in rule]
    return {
        (source["alertname"], target["alertname"])
        for rule in config["inhibit_rules"]
        for source in labels_of_alerts
        if all(matches(matcher, source) for matcher in rule["source_matchers"])
        for target in labels_of_alerts
        if all(matches(matcher, target) for matcher in rule["target_matchers"])
    }


def matches(matcher: str, labels: Mapping[str, str]) -> bool:
    match = re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', matcher)
    assert match, matcher
    pattern = match[3] if "~" in match[2] else re.escape(match[3])
    return bool(re.fullmatch(pattern, labels.get(match[1], ""))) is not match[2].startswith("!")


def test_no_alert_repeats_another() -> None:
    # Shorter lines say so little that others may say the same.
    lines = {part: {line.strip() for line in part.prose.splitlines() if len(line.strip()) > 70} for part in PARTS}
    for part, other in combinations(PARTS, 2):
        assert not lines[part] & lines[other], f"{part} and {other}"


def rules_of(part: Page) -> list[dict[str, Any]]:
    return [rule for rule in every_rule(FILES) if rule.get("alert") == part.alert]


@cache
def series() -> set[str]:
    """Return the names of all series of the worker and of all recorded series."""
    names = {rule["record"] for rule in every_rule(FILES) if "record" in rule}
    return names.union({"process_start_time_seconds"}, *map(samples_of, worker_metrics()))


@cache
def vocabulary() -> set[str]:
    """Return the known words: those of the reference pages and of the SDK, and labels with their values."""
    words = {*LABELS, *OUTCOMES, *series(), *tracejudge.__all__, *Settings().roles, "tracejudge", "ok", "other"}
    words |= {*Account.__struct_fields__, *tracejudge.Trace.__struct_fields__}
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        # Settings of judges stand in the second column.
        rows = re.findall(r"^\| `([a-z_]+)` \|(?: `([a-z_]+)` \|)?", page.read_text(encoding="utf-8"), re.MULTILINE)
        words |= {word for row in rows for word in row}
    exporters = ("receiver_delivery", "http_exporter", "receiver_client", "otlp_receiver")
    named = [f"worker/base/delivery/{name}.py" for name in exporters] + ["worker/core/telemetry/health.py"]
    words |= set(re.findall(r'"([a-z_]+)"', text_of(named)))
    words |= set(re.findall(r'\n    [A-Z_]+ = "([a-z_]+)"', text_of(["producers/tracejudge/delivery/buffer.py"])))
    keys = tomllib.loads(TABLE.read_text(encoding="utf-8"))["watcher"].values()
    return words | {key for part in keys for key in part}


@cache
def source() -> str:
    """Return the code and the tables that pages may quote."""
    folders = ("worker", "judges", "producers/tracejudge", "deploy/prometheus", "docs")
    kinds = {".py", ".lua", ".toml", ".yaml", ".yml", ".md"}
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.suffix in kinds)
    return text_of([*(path for path in paths if path.parent != FOLDER), "Makefile", "README.md"])


def text_of(paths: Iterable[str | Path]) -> str:
    return "\n".join((ROOT / path).read_text(encoding="utf-8") for path in paths)
