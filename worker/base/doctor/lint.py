"""`tracejudge lint`: all mistakes of a configuration, and what is allowed but probably a mistake.

Nothing is asked over the network. `tracejudge doctor` makes the same checks, and then asks.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, NamedTuple

import click
from msgspec import Struct

from judges.core.faults import Fault, Faults, SettingsError, one_line, run_faults
from judges.custom.definition import MAX_BYTES
from judges.models.registry import known_model
from worker.base.commands.options import CONFIG, JSON, NOTES, amount, print_json
from worker.base.dialects import is_table, read_fields, table_faults, table_files, write_table
from worker.core.config.loading import build, models_of_judge
from worker.core.config.reading import ConfigSources, named_variables, read, unconfigured, unknown_variables
from worker.core.config.settings import Rule, Settings
from worker.core.features import import_attribute, installed

_MAX_LETTERS: Final = 2
_MIN_WORD: Final = 5  # Of shorter words, as `eu` and `us`, both may be meant.
Severity = Literal["error", "warning"]
Step = str | int
Key = tuple[Step, ...]


class Code(NamedTuple):
    """A kind of finding. ``fix`` is for errors that name none."""

    code: str
    name: str
    severity: Severity
    meaning: str
    fix: str = ""


CODES: Final = (
    Code("TJ001", "unreadable-file", "error", "A file cannot be read, or is no TOML or PEM.",
        "check its path, its permissions and its syntax"),
    Code("TJ002", "unknown-key", "error", "No setting has this name.",
        "take it out, or name a key of docs/reference/configuration.md"),
    Code("TJ003", "missing-key", "error", "A needed key is absent or empty.", "set it"),
    Code("TJ004", "unknown-name", "error", "A judge, model or budget of this name does not exist.",
        "name one that the configuration has"),
    Code("TJ005", "no-probabilities", "error", "The first model of a cascade returns no probabilities.",
        'name a first model that does, such as one with provider = "decisions"'),
    Code("TJ006", "secret-in-file", "error", "A secret stands where the name of its variable belongs.",
        "name a variable of the environment, and put the secret there"),
    Code("TJ007", "wrong-value", "error", "A value has the wrong type, or is out of its bounds.",
        "set a value as docs/reference/configuration.md describes it"),
    Code("TJ008", "conflict", "error", "Values do not go together.", "keep one of them"),
    Code("TJ101", "chooses-nothing", "warning", "A rule chooses no trace."),
    Code("TJ102", "never-wins", "warning", "Another rule already chooses all that a rule chooses."),
    Code("TJ103", "unused", "warning", "No rule uses a model, a cascade or a judge, or no program a file."),
    Code("TJ104", "budget-not-kept", "warning", "A budget cannot be kept as it is written."),
    Code("TJ105", "shared-label", "warning", "Verdicts of two models are one series, since they have one label."),
    Code("TJ106", "unset-variable", "warning", "A variable that a setting names is not set here."),
    Code("TJ107", "unknown-variable", "warning", "A variable is named like a setting, and nothing reads it."),
    Code("TJ108", "heuristic-judges", "warning", "Without a configuration the built-in heuristic judges every trace."),
    Code("TJ109", "stale-calibration", "warning", "A calibration was fitted for another version of its judge."),
    Code("TJ110", "canary-without-labels", "warning", "The canary has no labelled trace for a judge of the rules."),
    Code("TJ111", "ending-model", "warning", "A model leaves its maker's API."),
    Code("TJ112", "needless-cascade", "warning", "A plain sample is as good as a cascade."),
    Code("TJ113", "near-service", "warning", "The service of a rule differs from another one by one or two letters."),
)  # fmt: skip
"""Every code. Codes are stable: scripts and suppressions name them."""
_BY_NAME: Final = {code.name: code for code in CODES}


class LintFinding(Struct, frozen=True, omit_defaults=True):
    """One finding: a mistake, its place, and how to fix it. ``place`` is a file or a variable."""

    code: str
    name: str
    severity: Severity
    what: str
    fix: str
    place: str = ""
    line: int | None = None
    key: str = ""

    def __str__(self) -> str:
        where = f"{self.place}:{self.line}" if self.line else self.place
        shown = ": ".join(filter(None, (where, self.key)))
        return f"{shown or 'defaults'}: {self.severity} {self.code} {self.name}: {self.what}\n    {self.fix}"


@click.command("lint")
@click.argument("file", required=False)
@click.option("--to", metavar="FILE", help="Write the table of a dialect to this file, as TOML or JSON.")
@CONFIG
@JSON
def command(file: str | None, config: str | None, to: str | None, *, as_json: bool) -> None:
    """Find all mistakes of a configuration, and what is allowed but probably a mistake.

    Reads FILE, or the configuration that a worker would read, with its variables and the tables in `dialects.d`. FILE
    may be the table of a dialect, too, as JSON or in `dialects.d`. Nothing is asked over the network. Exit code 0
    without findings, 1 with warnings only, 2 where a worker would not start. `--json` prints a line for each finding.

    \b
    Examples:
      tracejudge lint
      tracejudge lint deploy/tracejudge.toml --json
      tracejudge lint acme.json --to dialects.d/acme.toml
    """  # noqa: D301 - click's mark for lines that stay as they are
    if file is not None and config is not None:
        raise click.UsageError("give the file once: as FILE or as --config")
    if to is not None and (file is None or not is_table(Path(file)) or Path(to).suffix not in {".json", ".toml"}):
        raise click.UsageError("--to writes the table of a dialect: give it as FILE, and name a .toml or .json")
    rows = lint(os.environ, file or config)
    if to is not None and file is not None and not rows:
        write_table(Path(to), read_fields(Path(file)))
    for finding in rows:
        print_json(finding) if as_json else print(finding)
    errors = sum(finding.severity == "error" for finding in rows)
    if not as_json:
        text = f"{amount(errors, 'error')}, {amount(len(rows) - errors, 'warning')}" if rows else "nothing found"
        NOTES.print(text)
    sys.exit(2 if errors else int(bool(rows)))


def lint(environment: Mapping[str, str], config: str | None = None) -> list[LintFinding]:
    """Return all findings: errors, or without any the warnings, in the order of the checks."""
    return [finding_of(fault) for fault in examine(environment, config).faults]


class Configuration(NamedTuple):
    """A configuration, and all that is wrong in it or probably a mistake; no settings if its file cannot be read."""

    faults: list[Fault]
    settings: Settings | None = None
    path: str | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether no worker would start with it."""
        return any(_BY_NAME[fault.code].severity == "error" for fault in self.faults)


def examine(
    environment: Mapping[str, str], config: str | None, arguments: Mapping[str, object] | None = None
) -> Configuration:
    """Read and check a configuration as a worker does at its start, then look for probable mistakes."""
    if config is not None and is_table(Path(config)):
        return Configuration(list(table_faults([Path(config)])), None, config)
    try:
        faults, sources = run_faults(read(environment, config, arguments))
        further, settings = run_faults(
            sources.with_places(build(sources, environment, needs_broker=True, of_worker=True))
        )
    except SettingsError as error:
        return Configuration([error.fault])
    faults += [*further, *table_faults(table_files(sources.path))]
    if not faults:
        warnings, _ = run_faults(sources.with_places(_warnings(settings, sources, environment)))
        # The defaults are no mistakes.
        faults = [fault for fault in warnings if fault.place != "defaults"]
    for path in table_files(sources.path, "*.json"):
        fix = f"write it as TOML: tracejudge lint {path} --to {path.with_suffix('.toml')}"
        faults.append(Fault("", "no gateway reads tables in JSON", fix, "unused", str(path)))
    return Configuration([*faults, *unknown_variables(settings, environment)], settings, sources.path)


def parse_key(text: str) -> Key:
    """Parse a key as error texts write it: `rules[0].where.service`."""
    return tuple(int(part[1:-1]) if part[0] == "[" else part for part in re.findall(r"\[\d+\]|[^.\[\]]+", text))


def line_of(text: str, key: Key) -> int | None:
    """Return the number of the line of TOML that sets a key, or that begins the innermost table around it."""
    table: Key = ()
    rows: dict[Key, int] = {}
    best, line, is_text = 0, None, False
    for number, code in enumerate(text.splitlines(), start=1):
        was_text, is_text = is_text, is_text ^ (code.count('"""') + code.count("'''")) % 2 == 1
        if was_text:
            continue
        if header := re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", code):
            table = _parts(header[2])
            if header[1] == "[[":
                rows[table] = rows.get(table, -1) + 1
            # A table below a row belongs to the last one.
            row = next((outer for outer in rows if table[: len(outer)] == outer), None)
            if row is not None:
                table = (*row, rows[row], *table[len(row) :])
            here = table
        elif setting := re.match(r"\s*([\w.\"'-]+)\s*=", code):
            here = table + _parts(setting[1])
        else:
            continue
        # The key itself or a table around it; of a table that is written in parts, its first part.
        shared = min(len(here), len(key))
        if here[:shared] == key[:shared] and shared > best:
            best, line = shared, number
    return line


def _parts(dotted: str) -> Key:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def finding_of(fault: Fault) -> LintFinding:
    """Add to a fault its line and the meaning of its code."""
    line, code = None, _BY_NAME[fault.code]
    if fault.key and not fault.place.startswith(("TRACEJUDGE_", "--")):
        try:
            with open(fault.place, encoding="utf-8-sig") as file:  # noqa: PTH123 - a place is no path if nothing is set
                line = line_of(file.read(MAX_BYTES), parse_key(fault.key))
        except (OSError, ValueError):
            line = None
    what, fix, place, key = map(one_line, (fault.text, fault.fix or code.fix, fault.place, fault.key))
    return LintFinding(code.code, code.name, code.severity, what, fix, place, line, key)


def _warnings(settings: Settings, sources: ConfigSources, environment: Mapping[str, str]) -> Faults[None]:
    here = sources.path or "environment"
    if (absent := unconfigured(settings, sources.path)) is not None:
        yield Fault("", absent, "write one: tracejudge init", "heuristic-judges", here)
    yield from setting_warnings(settings)
    for variable in sorted(name for name in named_variables(settings) if not environment.get(name)):
        yield Fault("", f"{variable} is not set here", "set it where the worker runs", "unset-variable", here)


def setting_warnings(settings: Settings) -> Iterator[Fault]:
    """Find probable mistakes in settings that are allowed."""
    yield from _rules(settings)
    yield from _tables(settings)
    yield from _models(settings)
    for feature in installed():
        if feature.warnings:
            yield from import_attribute(feature.warnings)(settings)


def _rules(settings: Settings) -> Iterator[Fault]:
    for number, rule in enumerate(settings.rules):
        key = f"rules[{number}]"
        if not (rule.rate or rule.always or rule.tables) or rule.where.service == "":
            yield Fault(key, f"{rule.name!r} chooses no trace", "raise its rate, or take it out", "chooses-nothing")
        elif winners := _winners(settings, number):
            what = f"all that {rule.name!r} chooses is chosen by {' and '.join(map(repr, winners))} already"
            yield Fault(key, what, "take it out, or raise its rate", "never-wins")
        service, wild = rule.where.service or "*", frozenset("*?[")
        # Of two names that are near, the later one is reported.
        others = [other.where.service or "*" for other in settings.rules[: None if wild & set(service) else number]]
        if (meant := close_service(service, [name for name in others if not wild & set(name)])) is not None:
            what = f"{service!r} differs by little from the service {meant!r} of another rule"
            yield Fault(f"{key}.where.service", what, "write it as the service does, or ignore this", "near-service")


def _tables(settings: Settings) -> Iterator[Fault]:
    """Find models, cascades and judges that nothing names."""
    named = {name for rule in settings.rules for name in rule.models}
    aliases = settings.aliases
    used = {model for name in named for model in aliases.get(name, (name,))}
    # A key of a feature may name a model.
    used |= {value for rule in settings.rules for value in rule.tables.values() if isinstance(value, str)}
    used |= {str(table["model"]) for table in settings.judges.values() if "model" in table}
    judges = {judge for rule in settings.rules for judge in rule.judges}
    rows = (("models", settings.models, used), ("cascades", aliases, named), ("judges", settings.judges, judges))
    for key, tables, names in rows:
        for name in tables:
            if name not in names:
                yield Fault(f"{key}.{name}", "no rule uses it", "name it in a rule, or take it out", "unused")


def _models(settings: Settings) -> Iterator[Fault]:
    labels: dict[str, str] = {}
    for name, model in settings.models.items():
        if (other := labels.setdefault(model.judge_model, name)) != name:
            what = f"verdicts of it and of [models.{other}] are one series, since they have one label"
            yield Fault(f"models.{name}", what, "give one of them a label of its own", "shared-label")
        row = known_model(model.model or "")
        if "end" in row:
            what = f"{model.model} of [models.{name}] leaves its maker's API on {row['end']}"
            yield Fault(f"models.{name}", what, f"choose {row.get('instead', 'another model')}", "ending-model")


def _winners(settings: Settings, number: int) -> list[str]:
    """Name the rules that choose all that a rule chooses; none if it has an effect beside them."""
    rule, winners = settings.rules[number], dict[str, None]()
    if rule.egress is not None or rule.tables or rule.context_tools:
        return []
    for judge in rule.judges:
        winner = next(
            (
                other.name
                for place, other in enumerate(settings.rules)
                # Of two rules that are equal, the later one is reported.
                if place != number and _includes(settings, other, rule, judge)
                if place < number or not _includes(settings, rule, other, judge)
            ),
            None,
        )
        if winner is None:
            return []
        winners[winner] = None
    return list(winners)


def _includes(settings: Settings, other: Rule, rule: Rule, judge: str) -> bool:
    """Return whether another rule surely has one judge evaluate all that a rule has it evaluate."""
    for name in ("service", "environment", "name", "release", "model"):
        ours, theirs = getattr(other.where, name), getattr(rule.where, name)
        if ours is None or ours == theirs:
            continue
        if theirs is None or set(theirs) & set("*?[") or not fnmatchcase(theirs, ours):
            return False
    return (
        judge in other.judges
        and (other.unit, other.sample_by, other.tables) == (rule.unit, rule.sample_by, rule.tables)
        and models_of_judge(settings, other, judge) == models_of_judge(settings, rule, judge)
        and other.rate >= rule.rate
        and set(other.always) >= set(rule.always)
        and ("slow" not in rule.always or other.slow_s <= rule.slow_s)
        and set(other.where.has) <= set(rule.where.has)
    )


def close_service(pattern: str, services: Iterable[str]) -> str | None:
    """Return the service that a pattern misses by one or two letters; None if it matches a service, or is near none."""
    names = sorted(services)
    if any(fnmatchcase(name, pattern) for name in names):
        return None
    # Of a pattern only what comes before its first wildcard can be compared: with the beginning of a name.
    literal = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    lengths = (None,) if literal == pattern else range(len(literal) - 1, len(literal) + 2)
    return next((name for name in names for end in lengths if _is_near(literal, name[:end])), None)


def _is_near(ours: str, theirs: str) -> bool:
    """Return whether two names differ by at most two letters, in long words only and not by a digit."""
    same = sum(block.size for block in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks())
    if max(len(ours), len(theirs)) - same > _MAX_LETTERS or re.sub(r"\d", "", ours) == re.sub(r"\d", "", theirs):
        return False
    words = re.split(r"[\W_]+", ours), re.split(r"[\W_]+", theirs)
    pairs = zip(*words, strict=True) if len(words[0]) == len(words[1]) else (("".join(words[0]), "".join(words[1])),)
    return all(min(map(len, pair)) >= _MIN_WORD for pair in pairs if pair[0] != pair[1])
