"""`tracejudge up`: a Redis, a worker, the gateway and the board as children of one process, with a folder for data.

A part that ends by itself ends all of them. The Redis that is started here writes each change before it answers, so
that whatever is killed, the next `tracejudge up` in the same folder goes on where this one ended.
"""

import contextlib
import fcntl
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, NoReturn
from urllib.parse import urlsplit

import click
import redis

from judges.core.faults import ReportedError, install_command
from judges.models.registry import is_heuristic
from tracejudge.redis_url import mask_url
from worker.base.accounting import Account, read_account, sum_accounts
from worker.base.child import Child, ending_on_signals
from worker.base.commands.options import REDIS
from worker.base.embedded import EmbeddedRedis, is_free
from worker.core.config.loading import load
from worker.core.config.settings import Settings
from worker.core.features import installed_tables, is_installed
from worker.core.storage.client import Store, StoreError, make_stores
from worker.core.telemetry import logs

_FOLDER: Final = Path(".tracejudge")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_STATUS_S: Final = 5.0
_STEP_S: Final = 0.2
# A worker ends the calls that are under way within `grace_s`.
_STOP_S: Final = 15.0


class UpError(ReportedError, RuntimeError):
    """Something cannot be started; the message says how to fix it."""


class _Part(NamedTuple):
    """A command of ours that runs as a child, and the option and the value of its port."""

    name: str
    option: str
    port: int


@click.command("up")
@REDIS
@click.option("--gateway-port", type=click.IntRange(1, 65535), help="Port of the gateway.")
@click.option("--board-port", type=click.IntRange(1, 65535), help="Port of the board.")
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Port of the metrics page of the worker.")
def command(
    config: str | None,
    redis_url: str | None,
    gateway_port: int | None,
    board_port: int | None,
    metrics_port: int | None,
) -> None:
    """Run everything on this machine until Ctrl-C: Redis, worker, gateway and board.

    A Redis that answers at the configured address is used; else one is started there, whose data stay in .tracejudge of
    this folder. For production see docs/deploying.md: a container or a chart for each part.

    \b
    Examples:
      tracejudge up
      tracejudge up --redis-url redis://localhost:6380/0 --board-port 9820
    """  # noqa: D301 - click's mark for lines that stay as they are
    settings = load(os.environ, config, {"redis_url": redis_url, "metrics_port": metrics_port}, needs_broker=True)
    logs.configure("error")
    parts = list(_parts(settings, {"gateway": gateway_port, "board": board_port}))
    options = [*(("--config", str(Path(config).resolve())) if config else ()), "--redis-url", settings.redis_url]
    with _alone(_FOLDER), ending_on_signals(0):
        for part in parts:
            if not is_free(part.port):
                raise UpError(f"port {part.port} of the {part.name} is taken: choose another with {part.option}")
        with contextlib.ExitStack() as running:
            checks: list[Callable[[], object]] = []
            what = _start_redis(running, settings, checks)
            for part in parts:
                arguments = [*options, part.option.replace(f"--{part.name}-", "--"), str(part.port)]
                if part.name == "gateway" and not is_free(installed_tables()["gateway"].read(settings).metrics_port):
                    arguments += ["--metrics-port", "0"]  # Nobody needs its page here.
                checks.append(running.enter_context(_child(part, arguments)).check)
            stores = make_stores(settings.redis_url, settings.prefix, settings.partition_count)
            for store in stores:
                running.callback(store.close)
            print("\n".join(_introduction(settings, parts, what)), flush=True)
            with contextlib.suppress(SystemExit):  # a signal is the way to end it
                _watch(checks, stores)
            print("Ending the parts in order.", flush=True)


def _parts(settings: Settings, ports: dict[str, int | None]) -> Iterator[_Part]:
    """Yield the parts whose features and packages are installed; the first to start is the last to end."""
    yield _Part("worker", "--metrics-port", settings.metrics_port)
    for name, package in (("board", "jinja2"), ("gateway", "starlette")):
        if is_installed(name) and importlib.util.find_spec(package) is not None:
            yield _Part(name, f"--{name}-port", ports[name] or installed_tables()[name].read(settings).port)


def _child(part: _Part, arguments: list[str]) -> Child:
    def is_ready(_: Child) -> bool:
        return not is_free(part.port)

    log = _FOLDER / f"{part.name}.log"
    return Child(part.name, arguments, Path.cwd(), os.environ, is_ready, log=log, stop_s=_STOP_S)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which ends with this process, or raise ``UpError``."""
    try:
        folder.mkdir(exist_ok=True)
        lock = (folder / "lock").open("a+")
    except OSError as error:
        raise UpError(f"{folder.resolve()} cannot be written ({error.strerror}): run it in a folder of yours") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise UpError(f"tracejudge up runs in this folder already, as process {lock.read().strip()}") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _start_redis(running: contextlib.ExitStack, settings: Settings, checks: list[Callable[[], object]]) -> str:
    """Use the Redis at the configured address, or start one and check it later; return a phrase about its data."""
    shown = mask_url(settings.redis_url)
    with redis.Redis.from_url(settings.redis_url, socket_connect_timeout=2, socket_timeout=5) as client:
        try:
            client.ping()
        except redis.AuthenticationError:
            what = (
                "refuses the user or the password: correct them"
                if client.get_connection_kwargs().get("password")
                else "wants a password: write it"
            )
            raise UpError(f"Redis at {shown} {what} in redis_url") from None
        except redis.RedisError:
            pass
        else:
            return f"Redis at {shown}, which ran already"
    address = urlsplit(settings.redis_url)
    port = address.port or 6379
    if address.scheme != "redis" or address.hostname not in _LOOPBACK or address.password:
        raise UpError(f"no Redis answers at {shown}, and one can be started only at redis://localhost:PORT/0")
    if not is_free(port):
        raise UpError(
            f"port {port} is taken, and not by a Redis: choose another with --redis-url redis://localhost:PORT/0"
        )
    folder = (_FOLDER / "redis").resolve()
    checks.append(running.enter_context(EmbeddedRedis(appendonly=True, folder=folder, port=port)).check)
    return f"a Redis at {shown}, whose append-only file stays in {_FOLDER / 'redis'}"


def _introduction(settings: Settings, parts: list[_Part], what: str) -> Iterator[str]:
    ports = {part.name: part.port for part in parts}
    yield f"TraceJudge runs until Ctrl-C, with {what}."
    if "board" in ports:
        yield f"\n  Board          http://127.0.0.1:{ports['board']}"
    yield "\n  SDK            import tracejudge"
    yield f'                 tracejudge.init(service="my-service", redis_url="{mask_url(settings.redis_url)}")'
    if "gateway" in ports:
        yield f"\n  OpenTelemetry  OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{ports['gateway']}"
        yield "                 OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
    models = {name: model for name, model in settings.models.items() if not is_heuristic(model)}
    if models:
        yield f"\nVerdicts come from {', '.join(sorted({model.judge_model for model in models.values()}))}."
    else:
        yield (
            "\nVerdicts come from a heuristic that compares words, for trials only: `tracejudge init` writes "
            "tracejudge.toml, where a model is named."
        )
    missing = [name for name in ("board", "gateway") if name not in ports]
    if missing:
        yield f"Not installed: {', '.join(missing)} ({install_command(*missing)})."
    yield f"Logs of the parts are in {_FOLDER}.\n"


def _watch(checks: list[Callable[[], object]], stores: tuple[Store, ...]) -> NoReturn:
    """Print what was done whenever that changes, until a signal or the end of a part."""
    shown, next_s = "", 0.0
    while True:
        for check in checks:
            check()
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + _STATUS_S
            with contextlib.suppress(StoreError):
                line = _status(sum_accounts([read_account(store) for store in stores]))
                if line != shown:
                    shown = line
                    print(time.strftime("%H:%M:%S  ") + line, flush=True)
        time.sleep(_STEP_S)


def _status(account: Account) -> str:
    verdicts = f"{account.finished:,} verdicts, {account.waiting:,} waiting"
    return f"{account.published:,} traces, {verdicts}, {account.lost:,} lost"
