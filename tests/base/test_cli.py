"""The command line as a whole: help, wrong usage, configuration and Redis that do not serve, exit codes."""

import json
import re
import socketserver
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.cases import each_case
from support.cli_parts import SAMPLES, SECRET, Run, check_help, labelled, words, write_lines
from support.loaded import loaded_beyond
from support.processes import free_port

from worker.base.commands.groups import commands
from worker.base.embedded import EmbeddedRedisError
from worker.base.lookup import tail
from worker.core.storage.client import StoreError

HELP: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("init",): ("--output FILE", "--force", "--print"),
    ("lint",): ("--config FILE", "--json", "Exit code 0 without findings, 1 with warnings only, 2"),
    ("doctor",): ("--ask", "--json", "Exit code 1", "--config FILE", "--redis-url URL"),
    ("replay",): (
        *("--since TIME", "--until TIME", "--judge NAME", "--service PATTERN", "--model NAME", "--rate SHARE"),
        *("--dry-run", "--continue REPLAY", "--config FILE", "--redis-url URL", "--json"),
    ),
    ("show",): ("TRACE_ID", "--whole", "--config FILE", "--redis-url URL", "--json", "Examples"),
    ("search",): (
        *("--service PATTERN", "--judge PATTERN", "--failed", "--outcome", "--text TEXT", "--trace-id ID", "--limit N"),
        *("--since TIME", "--until TIME", "--config FILE", "--redis-url URL", "--json", "Examples", "Exit code 0"),
    ),
    ("export",): ("--labelled", "--output FILE", "--limit N", "--failed", "--redis-url URL", "--json", "Examples"),
    ("worker",): (
        "--roles LIST",
        "ingest, judge, export, monitor",
        "--config FILE",
        "--redis-url URL",
        "--metrics-port",
    ),
    ("publish",): ("FILE", "standard input", "--config FILE", "--redis-url URL"),
    ("judges",): ("--json", "--config FILE", "show"),
    ("judges", "show"): ("NAME", "--trace FILE", "--config FILE", "--json"),
    ("tail",): ("--failed", "--json", "--last N", "--count N", "--config FILE", "--redis-url URL"),
    ("account",): ("--json", "--config FILE", "--redis-url URL"),
    ("dead",): ("list", "show", "retry", "drop", "Examples"),
    ("dead", "list"): (
        *("--reason REASON", "--service PATTERN", "--judge NAME", "--older-than TIME", "--newer-than TIME", "--id ID"),
        *("--limit N", "--oldest", "--json", "--config FILE", "--redis-url URL", "Examples"),
    ),
    ("dead", "show"): ("ID", "--texts", "--json", "--config FILE", "--redis-url URL", "Examples"),
    ("dead", "retry"): (
        *("--reason REASON", "--service PATTERN", "--judge NAME", "--older-than TIME", "--newer-than TIME", "--id ID"),
        *("--all", "--dry-run", "--json", "--config FILE", "--redis-url URL", "Examples"),
    ),
    ("dead", "drop"): (
        *("--reason REASON", "--service PATTERN", "--judge NAME", "--older-than TIME", "--newer-than TIME", "--id ID"),
        *("--all", "--yes", "--dry-run", "--json", "--config FILE", "--redis-url URL", "Examples"),
    ),
    ("invalid",): ("list", "Examples"),
    ("invalid", "list"): ("--limit N", "--json", "--config FILE", "--redis-url URL", "Examples"),
    ("forget",): (
        "--trace-id ID",
        "--user-id ID",
        "--dry-run",
        "--json",
        "--config FILE",
        "--redis-url URL",
        "Examples",
    ),
}


@each_case("verb", HELP, ids=" ".join)
def test_each_command_has_help_of_its_arguments(run: Run, verb: tuple[str, ...]) -> None:
    check_help(run, verb, HELP[verb])


def test_the_version_is_the_distribution_s(run: Run) -> None:
    assert re.fullmatch(r"tracejudge, version \d+\.\d+\.\d+(\.dev\d+)?\n", run("--version").out)


WRONG_USAGE = {
    "no verb": ([], "Usage: tracejudge [OPTIONS] COMMAND"),
    "unknown verb": (["nope"], "No such command 'nope'."),
    "misspelt verb": (["acount"], "No such command 'acount'. Did you mean 'account'?"),
    "verb of a group": (["align"], "No such command 'align'. Did you mean 'judges align'?"),
    "misspelt verb of dead": (["dead", "retri"], "No such command 'retri'. Did you mean 'retry'?"),
    "unknown option": (["account", "--nope"], "No such option"),
    "no file": (["publish"], "Missing argument 'FILE'."),
    "absent file": (["publish", "absent.jsonl"], "File 'absent.jsonl' does not exist"),
    "no number": (["tail", "--last", "few"], "not a valid integer"),
    "count of none": (["tail", "--count", "0"], "not in the range x>=1"),
    "options before show": (["judges", "--json", "show", "safety"], "write options behind `judges show`"),
    "unknown verb of judges": (["judges", "nope"], "No such command 'nope'."),
    "unknown verb of dead": (["dead", "nope"], "No such command 'nope'."),
    "unknown reason": (["dead", "list", "--reason", "nope"], "'nope' is not one of"),
    "retry of what": (["dead", "retry"], "select by --reason, --service, --judge"),
    "retry of all and some": (["dead", "retry", "--all", "--judge", "safety"], "--all takes everything"),
    "drop of what": (["dead", "drop", "--yes"], "select by --reason, --service, --judge"),
    "drop unasked": (["dead", "drop", "--all"], "there is no terminal to confirm on: add --yes, or try --dry-run"),
    "forget whom": (["forget"], "give one of --trace-id, --user-id and --session-id"),
    "forget both": (
        ["forget", "--trace-id", "1", "--user-id", "2"],
        "give one of --trace-id, --user-id and --session-id",
    ),
}


@each_case(("arguments", "message"), WRONG_USAGE.values(), ids=WRONG_USAGE.keys())
def test_wrong_usage_is_exit_code_two(run: Run, arguments: Sequence[object], message: str) -> None:
    ended = run(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in words(ended.err)
    assert "Traceback" not in ended.err


# --- configuration and Redis that do not serve ---
REPLAY = {"replay": ["replay", "--since", "1h", "--judge", "relevance_to_query"]}
DEAD = {
    "dead list": ["dead", "list"],
    "invalid list": ["invalid", "list"],
    "dead show": ["dead", "show", "1"],
    "dead retry": ["dead", "retry", "--all"],
    "dead drop": ["dead", "drop", "--all", "--yes"],
    "forget": ["forget", "--trace-id", "1"],
}
NEEDS_REDIS = {"account": ["account"], "account as JSON": ["account", "--json"], "tail": ["tail"], **REPLAY, **DEAD}
CONFIGURED = {
    **NEEDS_REDIS,
    "publish": ["publish", "-"],
    "worker": ["worker"],
    "judges": ["judges"],
    "judges as JSON": ["judges", "--json"],
    "judges show": ["judges", "show", "safety"],
}


@each_case("arguments", CONFIGURED.values(), ids=CONFIGURED.keys())
def test_a_wrong_configuration_is_exit_code_two_and_one_line(run: Run, arguments: Sequence[object]) -> None:
    Path("tracejudge.toml").write_text("batch_size = 0", encoding="utf-8")
    ended = run(*arguments)
    assert ended.code == 2
    assert ended.complaint == "tracejudge: tracejudge.toml: batch_size: must be a whole number from 1 to 1000"


@each_case("arguments", CONFIGURED.values(), ids=CONFIGURED.keys())
def test_a_configuration_that_is_named_must_be_there(run: Run, arguments: Sequence[object]) -> None:
    ended = run(*arguments, "--config", "absent.toml")
    assert ended.code == 2
    assert ended.complaint == (
        "tracejudge: absent.toml: cannot be read (No such file or directory); check --config or TRACEJUDGE_CONFIG"
    )


def test_an_argument_is_named_as_it_is_written(run: Run) -> None:
    for arguments, message in (
        (["worker", "--roles", "ingest, jduge"], "--roles: roles[1]: must be one of export, ingest, judge, monitor"),
        (["worker", "--queues", "lexical, cod"], "--queues: no rule uses the judge model 'cod'; known are lexical"),
        (["worker", "--metrics-port", "65536"], "--metrics-port: metrics_port: must be a whole number from 0 to 65535"),
    ):
        ended = run(*arguments)
        assert (ended.code, ended.complaint) == (2, f"tracejudge: {message}")


def test_an_address_that_is_none_shows_no_password(run: Run) -> None:
    for url in (f"redis://:{SECRET}/x@host:6379/0", f"http://:{SECRET}@host", f"redis://[{SECRET}"):
        ended = run("account", "--redis-url", url)
        assert ended.code == 2
        assert ended.complaint.startswith("tracejudge: --redis-url: redis_url: ")


@each_case(
    "arguments",
    [*NEEDS_REDIS.values(), ["publish", SAMPLES / "support-bot.jsonl"]],
    ids=[*NEEDS_REDIS.keys(), "publish"],
)
def test_an_absent_redis_is_exit_code_one_and_one_line_that_says_where_it_was_sought(
    run: Run, arguments: Sequence[object]
) -> None:
    port = free_port()
    ended = run(*arguments, "--redis-url", f"redis://user:{SECRET}@127.0.0.1:{port}/3")
    assert ended.code == (3 if arguments[0] == "account" else 1)
    assert ended.complaint == (
        f"tracejudge: nothing listens at redis://127.0.0.1:{port}/3; start Redis there, or correct the address"
        " (redis_url, TRACEJUDGE_REDIS_URL or --redis-url)"
    )


def test_a_database_that_redis_does_not_have_is_named_with_its_fix(run: Run, redis_url: str) -> None:
    url = f"{redis_url.rpartition('/')[0]}/9999"
    fix = "correct the number at the end of the URL, 0 to 15 as a rule"
    ended = run("account", "--redis-url", url)
    assert ended.code == 3
    why = "it has no database of this number"
    place = "redis_url, TRACEJUDGE_REDIS_URL or --redis-url"
    assert ended.complaint == f"tracejudge: {url} refuses the connection ({why}); {fix} ({place})"
    parts = {part["name"]: part for part in json.loads(run("doctor", "--redis-url", url, "--json").out)["parts"]}
    assert parts["redis"]["what"] == f"{url} refuses the connection (it has no database of this number)"
    assert parts["redis"]["mend"] == fix


def test_an_absent_redis_of_a_file_is_corrected_in_that_file(run: Run) -> None:
    for key in (f'redis_url = "redis://127.0.0.1:{free_port()}/0"', 'redis_url = "http://127.0.0.1"'):
        Path("mine.toml").write_text(key, encoding="utf-8")
        assert "mine.toml" in run("account", "--config", "mine.toml").complaint, key
    cluster = (
        f'redis_url = "redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{free_port()}"\nbroker_url = "amqp://host"\n'
    )
    Path("mine.toml").write_text(cluster, encoding="utf-8")
    complaint = run("account", "--config", "mine.toml").complaint
    assert "no connection to redis+cluster://" in complaint
    assert complaint.endswith(" (redis_url in mine.toml, TRACEJUDGE_REDIS_URL or --redis-url)")
    complaint = run("worker", "--config", "mine.toml", "--partitions", "0,2-8").complaint
    assert complaint == "tracejudge: --partitions: served_partitions: there is no partition 8; the last one is 7"


def test_a_redis_that_refuses_the_password_is_not_told_it_on_screen(run: Run, redis_url: str) -> None:
    ended = run("account", "--redis-url", redis_url.replace("redis://", f"redis://:{SECRET}@"))
    assert ended.code == 3
    assert "refuses the user or the password" in ended.complaint
    assert "; correct user and password in the URL" in ended.complaint
    assert "start" not in ended.complaint


@pytest.mark.parametrize(
    ("answer", "scheme", "cause"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "redis",
            "is no Redis: another program answers there; correct host and port",
        ),
        (b"", "rediss", "use redis:// if it speaks no TLS"),
    ],
    ids=["a web server", "no TLS"],
)
def test_another_program_at_the_address_is_told_within_three_seconds(
    run: Run, answer: bytes, scheme: str, cause: str
) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answering) as server:
        server.daemon_threads = True
        server.answer = answer  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        began = time.monotonic()
        ended = run("account", "--redis-url", f"{scheme}://127.0.0.1:{server.server_address[1]}/0")
        server.shutdown()
    assert ended.code == 3
    assert cause in ended.complaint
    assert time.monotonic() - began < 3.0


class Answering(socketserver.BaseRequestHandler):
    """Sends what its server says, or nothing for some seconds."""

    def handle(self) -> None:
        self.request.recv(1_000)
        if self.server.answer:  # type: ignore[attr-defined]
            self.request.sendall(self.server.answer)  # type: ignore[attr-defined]
        else:
            self.request.recv(1_000)


ENDS = {
    "Ctrl-C": (KeyboardInterrupt(), 130, ""),
    "Redis goes away": (StoreError("Redis does not answer (TimeoutError)"), 1, "tracejudge: Redis does not answer"),
    "no embedded Redis": (EmbeddedRedisError("no Redis server: install one"), 1, "tracejudge: no Redis server"),
}


@pytest.mark.parametrize(("error", "code", "message"), ENDS.values(), ids=ENDS.keys())
def test_an_exception_ends_a_command_with_its_exit_code(
    served: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def ending(*_: object) -> None:
        raise error

    monkeypatch.setattr(tail, "follow", ending)
    ended = served("tail")
    assert ended.code == code
    assert ended.err.startswith(message)
    assert "Traceback" not in ended.err


# What takes long to import. Python's own modules are `asyncio` alone; `opentelemetry` comes with redis.
PACKAGES = frozenset({
    *("asyncio", "celery", "certifi", "google", "httpx", "jinja2", "json_repair", "kombu", "numpy", "onnxruntime"),
    *("opentelemetry", "prometheus_client", "httptools", "redis", "rich", "starlette", "structlog", "tokenizers"),
    *("uvicorn", "uvloop", "yaml"),
})  # fmt: skip
LOGS = ("rich", "structlog", "asyncio")
REDIS = (*LOGS, "redis", "opentelemetry")
JUDGING = ("rich", "asyncio")
MAY_LOAD: Mapping[str, Sequence[str]] = {
    "": (),
    **dict.fromkeys(("init", "lint"), ("rich",)),
    # They check the settings before they import a server.
    **dict.fromkeys(("board", "worker"), LOGS),
    "evaluate": JUDGING,
    # Templates of judges are YAML.
    **dict.fromkeys(("judges", "judges align", "judges show", "judges test"), (*JUDGING, "yaml")),
    **dict.fromkeys(("account", "calibrate", "dead", "demo", "doctor", "export", "forget", "gateway"), REDIS),
    **dict.fromkeys(
        ("invalid", "labels", "plan", "publish", "replay", "report", "search", "show", "tail", "up", "failures"), REDIS
    ),
    "mcp": (*REDIS, "starlette", "uvicorn"),
    "help": ("rich",),
}
"""The packages that `tracejudge COMMAND --help` may load: those that the command uses whatever the configuration."""
RUNS: Mapping[str, Sequence[str]] = {
    "init --print": ("rich",),
    "lint": JUDGING,
    "judges": (*JUDGING, "yaml"),
    "judges show safety": (*JUDGING, "yaml"),
    "evaluate traces.jsonl --judge safety": JUDGING,
    **dict.fromkeys(("account", "dead list", "invalid list", "labels list", "report", "search"), REDIS),
}
"""Runs with the built-in model, which sends no requests."""


def test_a_command_loads_only_the_packages_that_it_uses(
    served: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert served("init").code == 0
    monkeypatch.setenv("TRACEJUDGE_MODELS", '{"default": {"provider": "lexical"}}')
    write_lines("traces.jsonl", [labelled(None)])
    present = {"", *commands(), *(f"judges {name}" for name in ("show", *commands("judges ")))}
    assert present <= MAY_LOAD.keys()
    lines = {f"{name} --help".strip(): MAY_LOAD[name] for name in sorted(present)}
    lines |= {line: allowed for line, allowed in RUNS.items() if line.split()[0] in present}
    assert loaded_beyond(lines, PACKAGES, tmp_path) == {}
