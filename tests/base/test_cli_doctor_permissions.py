"""`tracejudge doctor`: what a user of Redis may run is asked for, all that we run, and none of it is done."""

import ast
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from redis import Redis
from support.cli_parts import SECRET, Run
from support.doctor_parts import KEPT, examined, login, tuned

import worker
from worker.base.doctor.redis_server import worker_commands
from worker.base.embedded import EmbeddedRedis, ServerBinary, find_servers
from worker.core.config.settings import Settings
from worker.core.storage.keys import Keys

pytestmark = pytest.mark.usefixtures("_patient_doctor")
ASKED = {command[0] for command in worker_commands(Keys())}
WORKER = Path(worker.__file__).parent


@pytest.mark.parametrize("binary", find_servers(), ids=lambda binary: binary.version)
def test_a_user_without_permission_for_a_command_is_broken(run: Run, stack: ExitStack, binary: ServerBinary) -> None:
    server = stack.enter_context(tuned(*KEPT, binary=binary))
    with Redis.from_url(server.url) as client:
        client.execute_command(
            *("ACL", "SETUSER", "judge", "on", f">{SECRET}", "~tracejudge*", "~_kombu*", "~unacked*", "&*"),
            *("+@all", "-xclaim", "-evalsha", "-brpop"),
        )
    before = _contents(server)
    _, parts = examined(run, url=login(server.url, "judge"))
    assert parts["redis permissions"].what == "the user may not run: EVALSHA, XCLAIM"
    assert parts["broker permissions"].what == "the user may not run: BRPOP"
    assert _contents(server) == before, "nothing is run, only asked"


def test_a_user_without_permission_for_our_keys_is_broken(run: Run, stack: ExitStack) -> None:
    server = stack.enter_context(tuned(*KEPT))
    with Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "judge", "on", f">{SECRET}", "~other*", "+@all")
    _, parts = examined(run, url=login(server.url, "judge"))
    assert parts["redis permissions"].what.startswith("the user may not run: MEMORY USAGE, EXISTS, DEL")


# --- nothing is done ---
class Closed(NamedTuple):
    """What a user is refused, how the server is started, and what the doctor says of it."""

    rights: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    what: str | None = None


CLOSED = {
    "no transactions": Closed(rights=("-multi",), what="the user may not run: MULTI"),
    "transactions renamed": Closed(options=("--rename-command", "MULTI", "begin"), what="the user may not run: MULTI"),
    "none that ends": Closed(rights=("-exec",), what="the user may not run: EXEC"),
    "none at all": Closed(rights=("-@transaction",), what="the user may not run: MULTI, EXEC"),
    "none that is thrown away": Closed(rights=("-discard",)),
}


@pytest.mark.parametrize("binary", find_servers(), ids=lambda binary: binary.version)
@pytest.mark.parametrize("closed", CLOSED.values(), ids=CLOSED.keys())
def test_nothing_is_run_where_transactions_are_refused(
    run: Run, stack: ExitStack, binary: ServerBinary, closed: Closed
) -> None:
    server = stack.enter_context(tuned(*KEPT, *closed.options, binary=binary))
    with Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "judge", "on", f">{SECRET}", "~*", "&*", "+@all", *closed.rights)
        client.lpush(Settings().queue("doctor"), "message")
        client.hset("unacked", "a", "kept")
        client.set("tracejudge:doctor", "somebody's")
    before = _contents(server)
    _, parts = examined(run, url=login(server.url, "judge"))
    for part in (parts["redis permissions"], parts["broker permissions"]):
        assert part[:2] == ("broken", closed.what) if closed.what else part.result == "ok"
    assert _contents(server) == before


def _contents(server: EmbeddedRedis) -> dict[bytes, bytes]:
    with Redis.from_url(server.url) as client:
        return {key: client.dump(key) for key in client.scan_iter()}


# --- parts that need a right ---
def test_a_user_without_a_right_is_no_mistake_of_ours(run: Run, stack: ExitStack) -> None:
    server = stack.enter_context(tuned(*KEPT))
    with Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "judge", "on", f">{SECRET}", "~*", "&*", "+@all", "-time")
    _, parts = examined(run, url=login(server.url, "judge"))
    assert parts["redis permissions"].what == "the user may not run: TIME"
    assert parts["clock"] == (
        "broken",
        "cannot be checked: Redis refuses the user a command",
        "allow the commands that the part on permissions names (ACL SETUSER), then run the doctor again",
    )


# --- all that we run ---
def test_every_command_of_our_scripts_is_asked_for() -> None:
    scripts = [*WORKER.glob("**/scripts/**/*.lua")]
    assert len(scripts) > 10
    for script in scripts:
        output = script.read_text(encoding="utf-8").replace("redis.pcall", "redis.call").split("redis.call('")[1:]
        missing = {part.split("'")[0] for part in output} - ASKED
        assert not missing, f"{script.name} runs what worker/base/doctor/redis_server.py does not ask for"


# A method's name begins with its command; these make none of their own, or only the doctor's, which may be refused.
NO_COMMANDS = {"close", "pipeline"}
DOCTORS_OWN = {"info", "config_get"}
# The board's: a transaction cannot queue it, and it has the right of MULTI, which doctor needs for every command.
NOT_QUEUED = {"watch"}
SPELLED = {"register_script": "EVALSHA", "delete": "DEL"}


def test_every_command_that_our_code_calls_is_asked_for() -> None:
    called = {method for path in WORKER.rglob("*.py") for method in _methods(path.read_text(encoding="utf-8"))}
    assert len(called) > 20
    commands = {method: SPELLED.get(method, method.split("_")[0].upper()) for method in called}
    missing = {method for method, command in commands.items() if command not in ASKED}
    assert missing <= DOCTORS_OWN | NOT_QUEUED, "worker/base/doctor/redis_server.py does not ask for it"


def _methods(source: str) -> set[str]:
    """Find what is called of a Redis client or of its pipeline, which go by these names."""
    accesses = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    clients = [node for node in accesses if _name(node.value) in {"client", "pipe", "_redis"}]
    return {node.attr for node in clients if hasattr(redis.Redis, node.attr)} - NO_COMMANDS


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
