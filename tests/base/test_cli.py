"""The command line as a whole: help, wrong usage, configuration and Redis that do not serve, exit codes, completion."""

import contextlib
import io
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from support.commands import SAMPLES, SECRET, Run, labelled, words, write_lines
from support.loaded import loaded_beyond
from support.processes import free_port, slowness, wait_until
from support.tables import read_table

from tracejudge_worker import replaced_files
from worker.base.commands import completion
from worker.base.commands.groups import commands
from worker.base.embedded import EmbeddedRedisError
from worker.base.lookup import tail
from worker.cli import cli, main
from worker.core.storage.client import StoreError

CASES: dict[str, Any] = read_table(__file__, "cli")
PLACE = "redis_url, TRACEJUDGE_REDIS_URL or --redis-url"


def test_a_distribution_with_a_package_or_module_of_our_names_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, files, is_named in (
        ("jobs-1.dist-info", {"RECORD": "worker/__init__.py,,\njobs-1.dist-info/RECORD,,\n"}, True),
        ("jobs-1.dist-info", {"RECORD": "jobs/run.py,,\nworker.py,,\n"}, True),
        ("jobs-1.egg-info", {"top_level.txt": "jobs\njudges\n"}, True),
        ("jobs-1.dist-info", {"RECORD": "jobs/worker/run.py,,\nworkers/a.py,,\n", "top_level.txt": "jobs\n"}, False),
    ):
        folder = tmp_path / str(len([*tmp_path.iterdir()]))
        (folder / name).mkdir(parents=True)
        metadata = "PKG-INFO" if name.endswith(".egg-info") else "METADATA"
        for file, text in {**files, metadata: "Metadata-Version: 2.1\nName: jobs\nVersion: 1\n"}.items():
            (folder / name / file).write_text(text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            assert ("jobs also installed" in (replaced_files(names_others=True) or "")) is is_named, files


def each_command(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from each_command(inner, click.Context(inner, parent=context, info_name=name))


def test_every_help_ends_with_examples_that_fit_and_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.File, "convert", lambda _self, value, *_: value)
    monkeypatch.setattr(click.Path, "convert", lambda _self, value, *_: value)
    root = click.Context(cli, info_name="tracejudge", terminal_width=80, **cli.context_settings)
    for context in each_command(cli, root):
        name, text = context.command_path, context.command.get_help(context)
        assert (text.startswith(f"Usage: {name} "), context.help_option_names) == (True, ["-h", "--help"]), name
        _, marked, examples = text.rpartition("\n  Example")
        assert marked, f"{name}: no example"
        examples = examples.partition("\n\n")[0]
        lines = [line.strip() for line in examples.replace("\\\n", " ").splitlines()[1:] if line.strip()]
        assert lines, name
        assert [line for line in examples.splitlines() if len(line) > 80] == [], name
        assert any(line.startswith(name) for line in lines), (name, lines)
        for line in lines:
            parts = shlex.split(line, comments=True)
            parts = parts[: next((place for place, part in enumerate(parts) if part in {"|", ">"}), None)]
            parent, command = root, cli
            while parts[1:] and isinstance(command, click.Group) and not parts[1].startswith("-"):
                inner = command.get_command(parent, parts.pop(1))
                assert inner is not None, (name, line)
                command = inner
            with contextlib.suppress(click.exceptions.NoArgsIsHelpError):
                command.make_context(line, parts[1:], parent=root)


def test_every_verb_that_ends_prints_json_by_either_name() -> None:
    servers = {"board", "gateway", "mcp", "up", "worker"}
    root = click.Context(cli, info_name="tracejudge", **cli.context_settings)
    for context in each_command(cli, root):
        command = context.command
        if not isinstance(command, click.Group) and command.name not in servers:
            text, short, long = (
                command.make_context("", [*options], parent=root, resilient_parsing=True).params
                for options in ((), ("--json",), ("--format", "json"))
            )
            assert short == long != text, context.command_path


def test_help_prints_pages_and_runbooks_without_links_and_suggests_topics(served: Run) -> None:
    listed = served("help").out.splitlines()
    assert {"alerts", "runbooks/cost", "reference/metrics"} <= {line.split()[0] for line in listed}
    assert next(line for line in listed if line.startswith("alerts ")).split(maxsplit=1)[1] == "Alerts"
    page = served("help", "alerts").out
    assert page.startswith("# Alerts\n")
    assert "](" not in page
    runbook = served("help", "TraceJudgeBudgetExhausted").out
    assert runbook.startswith("# TraceJudgeBudgetExhausted\n")
    assert "TraceJudgeBudgetOverspent" not in runbook
    ended = served("help", "TraceJudgeBudgetExausted")
    assert (ended.code, "Did you mean 'TraceJudgeBudgetExhausted'?" in ended.err) == (2, True)
    # Words print the rows, sections or paragraphs that have them.
    for words_given, place, said in CASES["words of help"]:
        ended = served("help", *words_given.split())
        part = ended.out.partition(f"{place}\n")[2].partition("\n\n")[0]
        assert (ended.code, said in part) == (0, True), (words_given, ended)


# --- wrong usage; configuration and Redis that do not serve ---
def test_wrong_usage_is_exit_code_two(run: Run) -> None:
    assert re.fullmatch(r"tracejudge, version \d+\.\d+\.\d+(\.dev\d+)?\n", run("--version").out)
    for line, message in [*CASES["wrong usage"], ["invalid lst", "Did you mean 'list'?"]]:
        ended = run(*shlex.split(line))
        assert (ended.code, ended.out) == (2, ""), line
        assert message in words(ended.err), line
        assert "Traceback" not in ended.err, line
    # So is a wrong or absent configuration.
    wrong = "tracejudge.toml: batch_size: must be a whole number from 1 to 1000"
    fix = "check --config or TRACEJUDGE_CONFIG"
    for line in CASES["need redis"] + CASES["need configuration"]:
        Path("tracejudge.toml").write_text("batch_size = 0", encoding="utf-8")
        ended = run(*line.split())
        assert (ended.code, ended.complaint) == (2, f"tracejudge: {wrong}"), line
        Path("tracejudge.toml").unlink()
        ended = run(*line.split(), "--config", "absent.toml")
        absent = f"absent.toml: cannot be read (No such file or directory); {fix}"
        assert (ended.code, ended.complaint) == (2, f"tracejudge: {absent}"), line


def test_an_absent_redis_is_exit_code_one_and_one_line_that_says_where_it_was_sought(run: Run) -> None:
    for line in (*CASES["need redis"], f"publish {SAMPLES / 'support-bot.jsonl'}"):
        port = free_port()
        ended = run(*line.split(), "--redis-url", f"redis://user:{SECRET}@127.0.0.1:{port}/3")
        assert ended.code == (3 if line.startswith("account") else 1), line
        fix = f"start Redis there, or correct the address ({PLACE})"
        assert ended.complaint == f"tracejudge: nothing listens at redis://127.0.0.1:{port}/3; {fix}", line


def test_an_exception_ends_a_command_with_its_exit_code(served: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, code, message in (
        (KeyboardInterrupt(), 130, ""),
        (StoreError("Redis does not answer (TimeoutError)"), 1, "tracejudge: Redis does not answer"),
        (EmbeddedRedisError("no Redis server: install one"), 1, "tracejudge: no Redis server"),
    ):

        def ending(*_: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(tail, "follow", ending)
        ended = served("tail")
        assert ended.code == code
        assert ended.err.startswith(message)
        assert "Traceback" not in ended.err


# --- packages, completion, and the command as a process of its own ---
@pytest.mark.slow("starts each command for its help")
def test_a_command_loads_only_what_it_uses(served: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a command uses whatever the configuration; runs are with the built-in model, which sends nothing.

    Python's own modules are `asyncio` alone; `opentelemetry` comes with redis.
    """
    assert served("init").code == 0
    monkeypatch.setenv("TRACEJUDGE_MODELS", '{"default": {"provider": "lexical"}}')
    write_lines("traces.jsonl", [labelled(None)])
    may_load, runs = (
        {line: packages.split() for packages, lines in CASES[name] for line in lines.split(", ")}
        for name in ("may load", "runs")
    )
    present = {"", *commands(), *(f"judges {name}" for name in ("show", *commands("judges ")))}
    assert present <= may_load.keys()
    lines = {f"{name} --help".strip(): may_load[name] for name in sorted(present)}
    lines |= {line: allowed for line, allowed in runs.items() if line.split()[0] in present}
    assert loaded_beyond(lines, CASES["packages"].split(), tmp_path) == {}


def complete(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; sys.argv[0] = 'tracejudge'; from tracejudge_worker import main; main()"
    command, env = [sys.executable, "-c", program], os.environ | environment
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_values_are_completed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "short.toml").touch()
    shutil.copy(Path(__file__).parent / "data/completed.toml", tmp_path / "tracejudge.toml")
    (tmp_path / "other.toml").write_text("no TOML", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    completion.remember_services({"shop", "billing"})
    monkeypatch.chdir(tmp_path)

    def completed(answer: str) -> set[str]:
        rows = [row.split(",", 1) for row in answer.splitlines()]
        return {kind if kind == "file" else value for kind, value in rows}

    monkeypatch.setenv("_TRACEJUDGE_COMPLETE", "bash_complete")
    for line, expected in CASES["completed"].items():
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", f"{len(line.split(' ')) - 1}")
        with pytest.raises(SystemExit):
            completion.complete()
        assert completed(capsys.readouterr().out) == set(expected.split()), line
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = complete(tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert completed(done.stdout) == set(expected.split()), done
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3 * slowness()
    for shell, word in (("zsh", "compdef"), ("fish", "complete --no-files --command tracejudge")):
        done = complete(tmp_path, _TRACEJUDGE_COMPLETE=f"{shell}_source")
        assert (done.returncode, word in done.stdout) == (0, True), (shell, done)


COMMAND = [sys.executable, "-m", "worker.cli"]
ALONE = ["unshare", "--fork", "--pid", "--kill-child", "--map-root-user"]
"""A space of process ids of its own, in which the command is the first process."""
TERMINATED = 143


def may_be_first() -> bool:
    tried = shutil.which("unshare") and subprocess.run([*ALONE, "true"], check=False, capture_output=True)
    return bool(tried) and tried.returncode == 0


@pytest.mark.skipif(not may_be_first(), reason="no process may be the first of a space of its own here")
def test_as_first_process_it_ends_on_sigterm_before_it_has_begun(tmp_path: Path, redis_url: str) -> None:
    """It waits for traces on its standard input, where nobody handles the signal but the command itself."""
    # With a Redis: without one it would end by itself, where the signal comes late.
    command = [*ALONE, *COMMAND, "publish", "-", "--redis-url", redis_url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=tmp_path) as outside:
        children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children")
        try:
            (first,) = map(int, wait_until(lambda: children.read_text().split(), 60, "the first process"))

            def ended() -> bool:
                # Until it has come to its first line, the kernel throws the signal away.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(first, signal.SIGTERM)
                return outside.poll() is not None

            wait_until(ended, 60, "the end of the first process")
        finally:
            outside.kill()
    assert outside.returncode == TERMINATED


def test_characters_outside_the_encoding_of_the_output_are_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kind.toml").write_text('instructions = "Is {{ outputs }} kind? é 😀"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii", write_through=True))
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["judges", "show", "kind.toml"])
    assert b"kind? \\xe9 \\U0001f600" in shown.getvalue()
