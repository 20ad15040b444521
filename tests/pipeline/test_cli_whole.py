"""The command line with all features: its verbs, their help, wrong usage, a configuration that does not serve."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.cases import each_case
from support.cli_parts import SAMPLES, Run, check_help, words

from worker.base.commands.groups import commands
from worker.core.features import installed
from worker.installed import MODULES

CONTRACT_VERBS = {
    "report",
    *("demo", "worker", "publish", "evaluate", "judges", "tail", "account", "dead", "replay", "forget", "doctor"),
    *("invalid", "gateway"),
    *("labels", "calibrate", "plan"),
    *("show", "search", "export", "board", "failures", "mcp", "help"),
    *("init", "lint", "up"),
}


HELP: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("demo",): ("--seconds N", "--full", "--keep", "--json"),
    ("up",): ("--gateway-port", "--board-port", "--metrics-port", "--config FILE", "--redis-url URL", "Examples"),
    ("gateway",): ("--host", "--port", "/v1/traces", "--config FILE", "--redis-url URL"),
    ("failures",): ("--hours N", "--service PATTERN", "--judge PATTERN", "--config FILE", "--json", "Exit code 0"),
    ("mcp",): ("/mcp", "--config FILE", "--redis-url URL"),
    ("board",): ("--host", "--port", "--config FILE", "--redis-url URL", "Examples"),
    ("plan",): ("--since TIME", "--rate SHARE", "--model NAME", "--cascade NAME", "--config FILE", "--json"),
    ("report",): (
        *("--since TIME", "--until TIME", "--by KEYS", "--compare SPAN", "--format", "--archive FILE"),
        *("--service PATTERN", "--judge NAME", "--output FILE", "--config FILE", "--redis-url URL", "Examples"),
    ),
    ("evaluate",): (
        *("FILE", "standard input", "--judge NAME", "--output OUT", "--force", "--tries N", "--model NAME"),
        *("--config FILE", "--json", "An existing OUT is overwritten with --force only, and FILE never"),
    ),
    ("judges", "test"): (
        *("NAME|FILE TRACES...", "--label TAG", "--by TAG", "--metric METRIC", "--min", "--tries N", "--model NAME"),
        *("--config FILE", "--json"),
    ),
    ("labels",): ("import", "list", "Examples"),
    ("labels", "import"): (
        *("FILE", "standard input", "--judge NAME", "--metric METRIC", "--drawn HOW", "--label NAME", "--invert"),
        *("--verdicts FILE", "--dry-run", "--json", "--config FILE", "--redis-url URL", "Exit code 0"),
    ),
    ("labels", "list"): ("--judge NAME", "--json", "--config FILE", "--redis-url URL"),
    ("calibrate",): (
        *("--judge NAME", "--metric METRIC", "--since TIME", "--service PATTERN", "--archive FILE", "--json"),
        *("--model NAME", "--labels FILE", "--label NAME", "--from-audit", "--map", "--precision SHARE", "--svg FILE"),
        *("--write FILE", "--config FILE", "--redis-url URL", "Examples", "Exit code 0"),
    ),
}


@each_case("verb", HELP, ids=" ".join)
def test_each_command_of_a_feature_has_help_of_its_arguments(run: Run, verb: tuple[str, ...]) -> None:
    check_help(run, verb, HELP[verb])


def test_the_verbs_are_those_of_the_contract(run: Run) -> None:
    assert len(installed()) == len(MODULES)
    assert set(commands()) == CONTRACT_VERBS
    listed = run("--help").out.split("Commands:\n")[1].split("\n\n")[0]
    assert [line.split()[0] for line in listed.splitlines()] == sorted(commands())
    assert all(len(line.split()) > 1 for line in listed.splitlines())


WRONG_USAGE = {
    "short demo": (["demo", "--seconds", "0"], "not in the range"),
    "evaluate without a judge": (["evaluate", SAMPLES / "support-bot.jsonl"], "Missing option '--judge'."),
    "test without a file": (["judges", "test", "safety"], "Missing argument 'TRACES...'."),
}


@each_case(("arguments", "message"), WRONG_USAGE.values(), ids=WRONG_USAGE.keys())
def test_wrong_usage_is_exit_code_two(run: Run, arguments: Sequence[object], message: str) -> None:
    ended = run(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in words(ended.err)
    assert "Traceback" not in ended.err


CONFIGURED = {
    "judges test": ["judges", "test", "safety", SAMPLES / "support-bot.jsonl", "--label", "safe"],
    "evaluate": ["evaluate", SAMPLES / "support-bot.jsonl", "--judge", "safety"],
}


@pytest.mark.parametrize("arguments", CONFIGURED.values(), ids=CONFIGURED.keys())
def test_a_wrong_configuration_is_exit_code_two_and_one_line(run: Run, arguments: Sequence[object]) -> None:
    Path("tracejudge.toml").write_text("batch_size = 0", encoding="utf-8")
    ended = run(*arguments)
    assert ended.code == 2
    assert ended.complaint == "tracejudge: tracejudge.toml: batch_size: must be a whole number from 1 to 1000"
