"""`tracejudge doctor`: Redis in every state that breaks us, each named with its mend; and how the answer looks."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from redis import Redis
from support.cases import each_case
from support.cli_parts import SECRET, Run, words
from support.doctor_parts import KEPT, NOWHERE, be_present, examined, login, tuned
from support.processes import free_port, wait_until
from support.redis_kinds import TlsRedis, make_certificates

from worker.base.doctor import redis_server
from worker.base.embedded import ServerBinary, find_servers

pytestmark = pytest.mark.usefixtures("_patient_doctor")
ALL_WELL = {"redis", "redis version", "redis role", "redis eviction", "redis persistence", "redis memory"} | {
    *(
        "packages",
        "configuration",
        "configurations",
        "redis permissions",
        "broker",
        "broker permissions",
        "clock",
        "circuits",
        "accounting",
    ),
    *(
        "role ingest",
        "role judge",
        "role export",
        "role monitor",
        "dead letters",
        "input",
        "model default",
        "metrics page",
        "judge versions",
        "model families",
    ),
}


REDIS_TIMEOUT_S = redis_server._TIMEOUT_S


# --- the answer ---
@pytest.mark.parametrize("binary", find_servers(), ids=lambda binary: binary.version)
def test_a_deployment_that_serves_is_exit_code_zero(run: Run, stack: ExitStack, binary: ServerBinary) -> None:
    server = stack.enter_context(tuned(*KEPT, binary=binary))
    be_present(server.url)
    Path("tracejudge.toml").touch()
    ended, parts = examined(run, url=server.url)
    assert (ended.code, parts["configuration"].what) == (0, "tracejudge.toml")
    assert {name: part.result for name, part in parts.items()} == dict.fromkeys(ALL_WELL, "ok")


def test_text_output_has_a_line_for_each_part_and_fixes_of_broken_ones(run: Run, stack: ExitStack) -> None:
    server = stack.enter_context(tuned(*KEPT))
    ended = run("doctor", "--redis-url", server.url)
    assert (ended.code, ended.err) == (0, "")
    assert all(name in ended.out for name in ALL_WELL - {"configurations"} if not name.startswith("role"))
    assert "no worker runs yet → start `tracejudge worker`" in words(ended.out)


def test_the_configuration_file_is_named_and_its_absence_is_a_warning(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = f"--config and TRACEJUDGE_CONFIG are not set, and there is no tracejudge.toml in {tmp_path}"
    what = f"no configuration ({looked_at}): the built-in heuristic judges every trace"
    absent = ("warning", f"environment: {what}", "write one: tracejudge init")
    assert examined(run, url=NOWHERE)[1]["heuristic-judges"] == absent
    Path("mine.toml").touch()
    assert examined(run, "--config", "mine.toml", url=NOWHERE)[1]["configuration"] == ("ok", "mine.toml", "")
    monkeypatch.setenv("TRACEJUDGE_RULES", '[{"name": "safe", "judges": ["safety"]}]')
    assert examined(run, url=NOWHERE)[1]["configuration"] == ("ok", "from variables, without a file", "")
    monkeypatch.setenv("TRACEJUDGE_RULE", "[]")
    unknown = ("warning", "TRACEJUDGE_RULE: is no setting", "did you mean TRACEJUDGE_RULES?")
    assert examined(run, url=NOWHERE)[1]["unknown-variable"] == unknown


def test_a_configuration_that_cannot_be_read_is_a_broken_part(run: Run) -> None:
    Path("tracejudge.toml").write_text("batch_size = 0", encoding="utf-8")
    ended, parts = examined(run)
    assert ended.code == 1
    assert list(parts) == ["configuration"]
    assert parts["configuration"].what == "tracejudge.toml: batch_size: must be a whole number from 1 to 1000"


def test_a_secret_of_the_metrics_page_that_is_not_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_METRICS_HOST", "0.0.0.0")  # noqa: S104 - what containers set
    assert examined(run, url="redis://127.0.0.1:1/0")[1]["metrics page"].result == "warning"
    monkeypatch.setenv("TRACEJUDGE_METRICS_TOKEN_ENV", "ABSENT")
    assert examined(run, url="redis://127.0.0.1:1/0")[1]["metrics page"] == (
        "broken",
        "metrics_token_env: the variable ABSENT is empty",
        "put the secret there",
    )
    monkeypatch.setenv("ABSENT", SECRET)
    assert examined(run, url="redis://127.0.0.1:1/0")[1]["metrics page"].result == "ok"


def test_wrong_usage_is_exit_code_two(run: Run) -> None:
    assert run("doctor", "--nope").code == 2


# --- whether Redis lets us in ---
def test_a_redis_that_is_absent(run: Run) -> None:
    port = free_port()
    ended, checks = examined(run, url=f"redis://user:{SECRET}@127.0.0.1:{port}/0")
    assert checks["redis"] == (
        "broken",
        f"nothing listens at redis://127.0.0.1:{port}/0",
        "start Redis there, or correct the address",
    )
    parts = {"packages", "configuration", "redis", "metrics page", "model default", "heuristic-judges"}
    assert set(checks) == parts, "what needs Redis is not named as well"
    assert SECRET not in ended.out


def test_a_redis_that_was_stopped(run: Run, stack: ExitStack) -> None:
    server = stack.enter_context(tuned())
    url = server.url
    server.kill()
    assert examined(run, url=url)[1]["redis"].what.startswith("nothing listens at ")


@pytest.mark.usefixtures("_no_names")
def test_a_name_that_leads_nowhere(run: Run) -> None:
    assert examined(run, url="redis://no-such-host.invalid:6379/0")[1]["redis"].what == (
        "the name of redis://no-such-host.invalid:6379/0 cannot be resolved"
    )


@pytest.mark.parametrize("password", [None, "wrong"], ids=["none", "wrong"])
def test_a_password_that_is_wrong_or_missing(run: Run, stack: ExitStack, password: str | None) -> None:
    server = stack.enter_context(tuned())
    stack.callback(server.kill)
    with Redis.from_url(server.url) as client:
        client.config_set("requirepass", SECRET)
    url = server.url if password is None else login(server.url, "", password)
    ended, parts = examined(run, url=url)
    assert parts["redis"].result == "broken"
    assert parts["redis"].what.endswith("refuses the user or the password, or asks for one")
    assert examined(run, url=login(server.url, ""))[1]["redis"].result == "ok"
    assert SECRET not in ended.out
    assert "wrong@" not in ended.out


def test_tls_where_there_is_none_and_none_where_there_is(
    run: Run, monkeypatch: pytest.MonkeyPatch, stack: ExitStack, tmp_path: Path
) -> None:
    files = make_certificates(tmp_path)
    server = stack.enter_context(TlsRedis(files))
    with monkeypatch.context() as impatient:
        impatient.setattr(redis_server, "_TIMEOUT_S", REDIS_TIMEOUT_S)
        plain = examined(run, url=server.url.replace("redis://", "rediss://"))[1]["redis"]
    assert plain.result == "broken"
    assert plain.what.endswith("does not answer in time")
    assert "use redis:// if it speaks no TLS" in plain.mend
    closed = examined(run, url=server.tls_url.replace("rediss://", "redis://"))[1]["redis"]
    assert (closed.result, closed.mend) == ("broken", "perhaps it speaks TLS: use rediss:// or https://")
    untrusted = examined(run, url=server.tls_url)[1]["redis"]
    assert "the certificate of" in untrusted.what
    assert examined(run, url=f"{server.tls_url}?ssl_ca_certs={files.authority}")[1]["redis"].result == "ok"


def test_a_user_without_permission_for_config_get_is_a_warning(run: Run, stack: ExitStack) -> None:
    server = stack.enter_context(tuned(*KEPT))
    with Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "judge", "on", f">{SECRET}", "~*", "&*", "+@all", "-info")
    be_present(server.url)
    ended, parts = examined(run, url=login(server.url, "judge"))
    assert (ended.code, parts["redis keeping"].result) == (0, "warning")


# --- whether it takes what we write, and keeps it ---
def test_a_replica_that_takes_no_writes(run: Run, stack: ExitStack) -> None:
    master = stack.enter_context(tuned(*KEPT, "--repl-diskless-sync-delay", "0"))
    replica = stack.enter_context(tuned(*KEPT, "--replicaof", "127.0.0.1", str(master.port)))
    with Redis.from_url(replica.url) as client:
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", what="the replica")
    _, parts = examined(run, url=replica.url)
    assert parts["redis role"][:2] == ("broken", "it is a replica, which takes no writes")
    assert parts["redis permissions"].result == "ok", "that is another thing"


POLICIES = {
    "allkeys-lru": (
        "broken",
        "maxmemory-policy is allkeys-lru: Redis deletes the records that make evaluations count once as soon",
    ),
    "volatile-ttl": ("broken", "maxmemory-policy is volatile-ttl: "),
    "noeviction": ("ok", "noeviction"),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_an_evicting_policy(run: Run, stack: ExitStack, policy: str) -> None:
    result, what = POLICIES[policy]
    server = stack.enter_context(tuned(*KEPT, "--maxmemory-policy", policy))
    part = examined(run, url=server.url)[1]["redis eviction"]
    assert part.result == result
    assert part.what.startswith(what)


PERSISTENCE = {
    "none": ((), "broken", "it keeps nothing on disk"),
    "snapshots": (("--save", "60 1"), "warning", "snapshots alone"),
    "appendonly": (KEPT, "ok", "appendonly"),
}


@pytest.mark.parametrize(("options", "result", "what"), PERSISTENCE.values(), ids=PERSISTENCE.keys())
def test_persistence(run: Run, stack: ExitStack, options: tuple[str, ...], result: str, what: str) -> None:
    server = stack.enter_context(tuned(*options))
    part = examined(run, url=server.url)[1]["redis persistence"]
    assert part.result == result
    assert part.what.startswith(what)


@each_case(("share", "result"), [(0.5, "ok"), (0.85, "warning"), (1.0, "broken")])
def test_memory_that_is_nearly_full(share: float, result: str) -> None:
    findings = redis_server.memory({"used_memory": int(share * 1e9), "maxmemory": int(1e9)})
    assert findings.result == result


def test_a_redis_that_is_full(run: Run, stack: ExitStack) -> None:
    server = stack.enter_context(tuned(*KEPT, "--maxmemory", "300kb"))
    assert examined(run, url=server.url)[1]["redis memory"].result == "broken"


@each_case(("version", "result"), [("6.0.16", "broken"), ("6.2.14", "ok"), ("7.4.1", "ok"), ("10.0", "ok")])
def test_a_redis_that_is_too_old(version: str, result: str) -> None:
    assert redis_server.version({"redis_version": version}).result == result


CLOCKS = {0.0: "ok", 4.0: "ok", -6.0: "warning", 59.0: "warning", 61.0: "broken", -3600.0: "broken"}


@pytest.mark.parametrize("off_s", CLOCKS)
def test_a_clock_that_is_off(monkeypatch: pytest.MonkeyPatch, redis_url: str, off_s: float) -> None:
    monkeypatch.setattr(Redis, "time", lambda _: (1_700_000_000, 500_000))
    (finding,) = redis_server.clock(redis_url, now=lambda: 1_700_000_000.5 + off_s)
    assert finding.result == CLOCKS[off_s]
    if off_s:
        message = "ahead of" if off_s > 0 else "behind"
        assert finding.what == f"this machine's clock is {abs(off_s):.1f} s {message} Redis'"
