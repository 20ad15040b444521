"""`tracejudge lint`: all mistakes of a configuration, and what is allowed but probably a mistake.

A start stops at the first mistake. To find the next one, what is wrong is taken out of a copy of the configuration,
which is then checked again. A mistake that only follows from what was taken out is not reported.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple

import click
from msgspec import Struct

from judges.custom.definition import MAX_BYTES
from worker.cli.doctor import budgets, canary
from worker.cli.doctor.judge_models import calibrations
from worker.cli.options import CONFIG, JSON, NOTES, amount, print_json
from worker.config.checks import check_files, models_of_judge
from worker.config.loading import Given, build, named_variables, read, unconfigured, unknown_variables
from worker.config.settings import Rule, Settings, SettingsError

Severity = Literal["error", "warning"]
_MAX_FINDINGS: Final = 200
Step = str | int
Key = tuple[Step, ...]


class Code(NamedTuple):
    """A kind of finding. ``fix`` is for errors that name none; ``words`` is a pattern of the texts of its errors."""

    code: str
    name: str
    severity: Severity
    meaning: str
    fix: str = ""
    words: str = ""


CODES: Final = (
    Code("TJ001", "unreadable-file", "error", "A file cannot be read, or is no TOML or PEM.",
        "check its path, its permissions and its syntax",
        r"cannot be read|the file .* cannot be used|is not (TOML|UTF-8|JSON|a file name)|longer than 1 MiB|is a pipe"),
    Code("TJ002", "unknown-key", "error", "No setting has this name.",
        "take it out, or name a key of docs/reference/configuration.md", r"unknown (key|kind)"),
    Code("TJ003", "missing-key", "error", "A needed key is absent or empty.", "set it", r": is (missing|empty)"),
    Code("TJ004", "unknown-name", "error", "A judge, model or budget of this name does not exist.",
        "name one that the configuration has", r"there is no "),
    Code("TJ005", "no-probabilities", "error", "The first model of a cascade returns no probabilities.",
        'name a first model that does, such as one with provider = "decisions"',
        r"returns no probabilities"),
    Code("TJ006", "secret-in-file", "error", "A secret stands where the name of its variable belongs.",
        "name a variable of the environment, and put the secret there", r"never the (key|value|secret|token)"),
    Code("TJ007", "wrong-value", "error", "A value has the wrong type, or is out of its bounds.",
        "set a value as docs/reference/configuration.md describes it",
        r"must be(gin)? |has no valid |names no socket|does not name the master|write an amount"),
    Code("TJ008", "conflict", "error", "Values do not go together.", "keep one of them"),
    Code("TJ101", "chooses-nothing", "warning", "A rule chooses no trace."),
    Code("TJ102", "never-wins", "warning", "Another rule already chooses all that a rule chooses."),
    Code("TJ103", "unused", "warning", "No rule uses a model, a cascade or a judge."),
    Code("TJ104", "budget-not-kept", "warning", "A budget cannot be kept as it is written."),
    Code("TJ105", "shared-label", "warning", "Verdicts of two models are one series, since they have one label."),
    Code("TJ106", "unset-variable", "warning", "A variable that a setting names is not set here."),
    Code("TJ107", "unknown-variable", "warning", "A variable is named like a setting, and nothing reads it."),
    Code("TJ108", "heuristic-judges", "warning", "Without a configuration the built-in heuristic judges every trace."),
    Code("TJ109", "stale-calibration", "warning", "A calibration was fitted for another version of its judge."),
    Code("TJ110", "canary-without-labels", "warning", "The canary has no labelled trace for a judge of the rules."),
)  # fmt: skip
"""Every code. Codes are stable: scripts and suppressions name them."""
_OF_DOCTOR: Final = (
    ("budget-not-kept", "budgets", budgets),
    ("stale-calibration", "calibrations", calibrations),
    ("canary-without-labels", "canary_file", canary),
)
# Without the mistakes a rule may choose something else, and name less.
_OF_WHOLE: Final = frozenset({"chooses-nothing", "never-wins", "unused"})
_RULE_NAME: Final = re.compile(r" \(rule '.*'\)$")
_BY_NAME: Final = {code.name: code for code in CODES}


class LintFinding(Struct, frozen=True, omit_defaults=True):
    """One finding: what is wrong where, and how to fix it. ``place`` is a file or a variable."""

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
@CONFIG
@JSON
def command(file: str | None, config: str | None, *, as_json: bool) -> None:
    """Find all mistakes of a configuration, and what is allowed but probably a mistake.

    Reads FILE, or the configuration that a worker would read, with its variables. Nothing is asked over the network.
    Exit code 0 without findings, 1 with warnings only, 2 where a worker would not start. `--json` prints a line for
    each finding.

    \b
    Examples:
      tracejudge lint
      tracejudge lint deploy/tracejudge.toml --json
    """  # noqa: D301 - click's mark for lines that stay as they are
    if file is not None and config is not None:
        raise click.UsageError("give the file once: as FILE or as --config")
    found = lint(os.environ, file or config)
    for finding in found:
        print_json(finding) if as_json else print(finding)
    errors = sum(finding.severity == "error" for finding in found)
    if not as_json:
        said = f"{amount(errors, 'error')}, {amount(len(found) - errors, 'warning')}" if found else "nothing found"
        NOTES.print(said, highlight=False)
    sys.exit(2 if errors else int(bool(found)))


def lint(environment: Mapping[str, str], config: str | None = None) -> list[LintFinding]:
    """Return all findings, errors first, each group in the order of the checks."""
    found: list[LintFinding] = []
    variables = dict(environment)
    while True:
        try:
            given = read(variables, config)
            break
        except SettingsError as error:
            place, _, text = str(error).partition(": ")
            found.append(_finding(_code_of(str(error)), text, place=place))
            if variables.pop(place, None) is None:
                return found
    copy = _Copy(given, variables)
    settings = copy.mistakes(found)
    if settings is not None:
        left_out = _OF_WHOLE if found else frozenset()
        found += (one for one in _warnings(settings, given, environment) if one.name not in left_out)
    for unknown in unknown_variables(settings or Settings(), environment):
        fix = f"call it {unknown.close}" if unknown.close else "take it out"
        text = unknown.ignored or f"nothing reads it; {fix}"
        found.append(_finding(_BY_NAME["unknown-variable"], text, place=unknown.name))
    return found


class _Copy:
    """A configuration from which mistakes are taken out one by one, until the rest is right."""

    def __init__(self, given: Given, environment: Mapping[str, str]) -> None:
        self._given = given
        self._environment = environment
        # Rows of tables keep their number in the file when an earlier one is taken out.
        self._numbers = {key: list(range(len(rows))) for key, rows in given.values.items() if isinstance(rows, list)}
        self._reported: set[Key] = set()
        self._gone: set[str] = set()

    def mistakes(self, found: list[LintFinding]) -> Settings | None:
        """Add the findings; return the settings without the mistakes, None where they cannot be taken out."""
        for _ in range(_MAX_FINDINGS):
            settings = None
            try:
                settings = build(self._given)
                check_files(settings, self._given.origin, self._environment, of_worker=True)
            except SettingsError as error:
                place, key, text = self._located(str(error))
                shown = key
                if len(key) > 1 and isinstance(key[1], int):
                    shown = (key[0], self._numbers[str(key[0])][key[1]], *key[2:])
                # An error that only misses what was taken out is not one of the file.
                follows = re.search("there is no |go(es)? (together|with)", text) and any(
                    name in text for name in self._gone
                )
                if shown not in self._reported and not follows:
                    found.append(_finding(_code_of(str(error)), text, place=place, key=shown))
                if key and self._take_out(key, text, shown):
                    continue
            return settings
        return None

    def _located(self, text: str) -> tuple[str, Key, str]:
        """Split an error into its place, key and text."""
        text = _RULE_NAME.sub("", text)
        for place in sorted({"defaults", *self._given.origin.values()}, key=len, reverse=True):
            if text.startswith(f"{place}: "):
                rest = text.removeprefix(f"{place}: ")
                named = re.match(r"[a-z_]+(?:\.[\w-]+|\[\d+\])*", rest)
                key = parse_key(named[0]) if named else ()
                if key and key[0] in self._given.origin:
                    return place, key, rest[named.end() :].removeprefix(":").lstrip() if named else rest
                # Errors on addresses name the key within a sentence.
                words = (word for word in re.findall(r"[a-z_]+", rest) if self._given.origin.get(word) == place)
                return place, tuple(next(zip(words), ())), rest
        place, _, rest = text.partition(": ")
        return place, (), rest

    def _take_out(self, key: Key, text: str, shown: Key) -> bool:
        """Remove what an error names: one item of a list, the key, or, the second time, the table around it."""
        values = self._given.values
        held = _at(values, key)
        wrong = (
            [item for item in held if isinstance(item, str) and f"'{item}'" in text] if isinstance(held, list) else []
        )
        if isinstance(held, list) and wrong and len(held) > len(wrong):
            held[:] = [item for item in held if item not in wrong]
            return True
        repeated = shown in self._reported
        self._reported.add(shown)
        while len(key) > 1 and (repeated or _at(values, key) is None):
            key, repeated = key[:-1], False
        parent = _at(values, key[:-1])
        if isinstance(parent, dict) and key[-1] in parent:
            del parent[key[-1]]
            self._gone.add(str(key[-1]))
            if len(key) == 1:
                del self._given.origin[str(key[0])]
        elif isinstance(parent, list) and isinstance(key[-1], int) and key[-1] < len(parent):
            del parent[key[-1]]
            del self._numbers[str(key[0])][key[-1]]
        else:
            return False
        return True


def _at(values: Any, key: Key) -> Any:
    for step in key:
        try:
            values = values[step]
        except (LookupError, TypeError):
            return None
    return values


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


def _code_of(text: str) -> Code:
    return next(code for code in CODES if code.severity == "error" and re.search(code.words, text))


def _finding(code: Code, text: str, *, place: str = "", key: Key = ()) -> LintFinding:
    """Make a finding; the texts of errors hold the fix after a semicolon."""
    what, _, fix = text.partition("; ")
    shown = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in key).removeprefix(".")
    line = None
    if key and not place.startswith(("TRACEJUDGE_", "--")):
        try:
            with open(place, encoding="utf-8-sig") as file:  # noqa: PTH123 - a place is no path where nothing is set
                line = line_of(file.read(MAX_BYTES), key)
        except (OSError, ValueError):
            line = None
    return LintFinding(code.code, code.name, code.severity, what, fix or code.fix, place, line, shown)


def _warnings(settings: Settings, given: Given, environment: Mapping[str, str]) -> Iterator[LintFinding]:
    """Find what a start accepts."""

    def warn(name: str, text: str, *key: Step) -> LintFinding:
        place = given.origin.get(str(key[0]), "") if key else given.path or ""
        return _finding(_BY_NAME[name], text, place=place, key=key)

    if (absent := unconfigured(settings, given.path)) is not None:
        yield warn("heuristic-judges", f"{absent}; write one: tracejudge init")
    for name, text, key in (*_of_rules(settings), *_of_tables(settings)):
        if key[0] in given.origin:
            yield warn(name, text, *key)
    for name, table, check in _OF_DOCTOR:
        found = check(settings) if table in given.origin else ()
        yield from (warn(name, f"{one.what}; {one.fix}", table) for one in found if one.result == "warning")
    for variable in sorted(name for name in named_variables(settings) if not environment.get(name)):
        yield warn("unset-variable", f"{variable} is not set here; set it where the worker runs")


def _of_rules(settings: Settings) -> Iterator[tuple[str, str, Key]]:
    """Find rules without an effect: the name of the finding, its text, and its key."""
    for number, rule in enumerate(settings.rules):
        key = "rules", number
        if not (rule.rate or rule.always or rule.first_per_hour) or rule.where.service == "":
            yield "chooses-nothing", f"{rule.name!r} chooses no trace; raise its rate, or take it out", key
        elif winners := _winners(settings, number):
            what = f"all that {rule.name!r} chooses is chosen by {' and '.join(map(repr, winners))} already"
            yield "never-wins", f"{what}; take it out, or raise its rate", key


def _of_tables(settings: Settings) -> Iterator[tuple[str, str, Key]]:
    """Find models, cascades and judges that nothing names, and models that share a label."""
    named = {name for rule in settings.rules for name in rule.models}
    used = {name for rule in settings.rules for name in (*settings.models_of(rule), rule.second_model)}
    used |= {cascade.then for name, cascade in settings.cascades.items() if name in named}
    used |= {str(table["model"]) for table in settings.judges.values() if "model" in table}
    judges = {judge for rule in settings.rules for judge in rule.judges}
    for key, known in (("models", used), ("cascades", named), ("judges", judges)):
        for name in getattr(settings, key):
            if name not in known:
                yield "unused", "no rule uses it; name it in a rule, or take it out", (key, name)
    seen: dict[str, str] = {}
    for name, model in settings.models.items():
        if (other := seen.setdefault(model.judge_model, name)) != name:
            what = f"verdicts of it and of [models.{other}] are one series, since they have one label"
            yield "shared-label", f"{what}; give one of them a label of its own", ("models", name)


def _winners(settings: Settings, number: int) -> list[str]:
    """Name the rules that choose all that a rule chooses; none where it has an effect of its own."""
    rule, winners = settings.rules[number], dict[str, None]()
    if rule.egress is not None or rule.first_per_hour or rule.stratify or rule.context_tools:
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
    same = ("unit", "sample_by", "combine", "budget", "second_model")
    return (
        judge in other.judges
        and all(getattr(other, name) == getattr(rule, name) for name in same)
        and models_of_judge(settings, other, judge) == models_of_judge(settings, rule, judge)
        and other.rate >= rule.rate
        and other.repeat >= rule.repeat
        and set(other.always) >= set(rule.always)
        and ("slow" not in rule.always or other.slow_s <= rule.slow_s)
        and set(other.where.has) <= set(rule.where.has)
    )
