"""`tracejudge doctor`: endpoints of models, keys and one real question; families and versions of judges; workers."""

import asyncio
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from msgspec import structs
from support import echo_provider, replies
from support.cluster import Cluster
from support.commands import NOWHERE, SECRET, Part, Run, at, be_present, examined, part, write_lines
from support.decision_endpoint import MODEL, DecisionEndpoint
from support.endpoint import ChatEndpoint
from support.judging import choose
from support.loopback import LoopbackServer
from support.processes import free_port
from support.stages import Keyspace, make_verdict, settings_of, three_partitions
from support.tables import read_table
from transcripts import check_findings

from judges.core.model import ModelSettings
from judges.models.registry import PROVIDERS
from judges.registry import catalogue
from worker.base.doctor import http_endpoints as endpoints
from worker.base.doctor.command import families, join_partitions, judge_versions, same_family
from worker.base.doctor.finding import Finding, broken, ok
from worker.base.doctor.http_endpoints import endpoint as look_at
from worker.base.doctor.lint import setting_warnings
from worker.base.embedded import EmbeddedRedis
from worker.core.config.loading import load
from worker.core.config.settings import COMBINE, Rule, Settings
from worker.core.queue.ledger import DeadLetter, Ledger
from worker.core.storage.client import LAYOUT, Store
from worker.core.telemetry.health import Heartbeat

TABLES = read_table(__file__, "doctor")
pytestmark = pytest.mark.usefixtures("_patient_doctor")
ENDPOINT_TIMEOUT_S = endpoints._TIMEOUT_S  # before the fixture lengthens it


class Lister(LoopbackServer):
    """An endpoint with a list of models, which answers as it is told and keeps what was asked."""

    def __init__(self, status: int = 200, models: Sequence[str] = ("judge-1",), delay_s: float = 0) -> None:
        super().__init__()
        self.status, self.models, self.delay_s = status, models, delay_s
        self.asked: list[tuple[str, str, Mapping[str, str]]] = []

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.path, dict(request.headers)))
        await asyncio.sleep(self.delay_s)
        body = {"data": [{"id": name} for name in self.models]}
        return web.json_response(body, status=self.status, headers={"Location": "http://127.0.0.1:1/"})


@pytest.fixture
def model_of(run: Run, monkeypatch: pytest.MonkeyPatch) -> "Configured":
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    return Configured(run, monkeypatch)


class Configured:
    """Configure the default model, and give a part of what the doctor says of it."""

    def __init__(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        self._run, self._monkeypatch = run, monkeypatch

    def __call__(self, base_url: str, **more: object) -> Part:
        self.configure(base_url, **more)
        return part(self._run)

    def configure(self, base_url: str, **more: object) -> None:
        model = {"provider": "openai", "base_url": base_url, "model": "judge-1", "api_key_env": "JUDGE_KEY", **more}
        self._monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": model}))

    def ask(self, base_url: str, **more: object) -> Part:
        self.configure(base_url, **more)
        return part(self._run, "answer of default", "--ask")


def test_each_answer_of_an_endpoint_has_its_finding(model_of: Configured, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [{"models": [*map(str, range(100_000))]}, "warning", "lists 100000 models, and not judge-1"]
    for fields, result, what in (*TABLES["lists of models"], many):
        with Lister(**fields) as server:
            checked = model_of(f"{server.root_url}/v1")
        assert (checked.result, checked.what.endswith(what)) == (result, True), checked
        ((method, path, headers),) = server.asked
        asked = (method, path, headers["Authorization"])
        assert asked == ("GET", "/v1/models", f"Bearer {SECRET}"), "and it costs nothing"
    monkeypatch.setattr("judges.models.http._MAX_BYTES", 30)
    with Lister(models=("a", "b")) as server:
        assert model_of(f"{server.root_url}/v1").result == "ok", "it answers; what it lists is not known"


def test_each_provider_is_asked_in_its_own_way(model_of: Configured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS, "echo", echo_provider.ROW)
    in_file = {"api_key_env": None, "api_key_file": _key_file()}
    for provider, tail, settings, path, expected in (
        ("anthropic", "", {}, "/v1/models", {"x-api-key": SECRET, "anthropic-version": "2023-06-01"}),
        ("anthropic", "/v1", {}, "/v1/models", {"x-api-key": SECRET, "anthropic-version": "2023-06-01"}),
        ("anthropic", "/v1", in_file, "/v1/models", {"x-api-key": SECRET}),
        ("openai", "/v1", in_file, "/v1/models", {"Authorization": f"Bearer {SECRET}"}),
        ("echo", "", {}, "/echoes", {"x-echo-key": SECRET}),
    ):
        with Lister() as server:
            assert model_of(f"{server.root_url}{tail}", provider=provider, **settings).result == "ok", provider
        ((_, asked, headers),) = server.asked
        assert (asked, {name: headers[name] for name in expected}) == (path, expected), provider


@pytest.mark.usefixtures("_no_names")
def test_an_endpoint_that_is_not_there(model_of: Configured, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> None:
    found = {"nothing listens": model_of(f"http://127.0.0.1:{free_port()}/v1")}
    found["no such name"] = model_of("http://no-such-host.invalid/v1")
    server = stack.enter_context(Lister())
    found["no TLS"] = model_of(f"{server.root_url}/v1".replace("http://", "https://"))
    monkeypatch.setattr(endpoints, "_TIMEOUT_S", ENDPOINT_TIMEOUT_S)
    assert ENDPOINT_TIMEOUT_S < 5
    server, began = stack.enter_context(Lister(delay_s=100)), time.monotonic()
    found["no answer"] = model_of(f"{server.root_url}/v1")
    assert time.monotonic() - began < 30
    check_findings("endpoints", found)


def _key_file() -> str:
    path = Path("key")
    path.write_text(f"{SECRET}\n", encoding="utf-8")
    path.chmod(0o600)
    return str(path)


def test_a_key_is_fixed_where_it_is_kept(run: Run, model_of: Configured, monkeypatch: pytest.MonkeyPatch) -> None:
    _key_file()
    found: dict[str, Part] = {}
    in_file = {"api_key_env": None, "api_key_file": "key"}
    for settings in ({"api_key_env": "JUDGE_KEY"}, in_file, {"api_key_env": None}):
        with Lister(401) as server:
            found[f"refused: {settings}"] = model_of(f"{server.root_url}/v1", **settings)
    found["no such file"] = model_of("http://127.0.0.1:1/v1", api_key_env=None, api_key_file="absent")
    monkeypatch.delenv("JUDGE_KEY")
    found["no such variable"] = model_of("http://127.0.0.1:1/v1")
    _, parts = examined(run, "--ask", url=NOWHERE)
    assert (parts["model default"].result, "answer of default" in parts) == ("broken", False), "told once"
    metadata = ModelSettings(base_url="http://169.254.169.254/v1", model="m")
    check_findings("keys", {**found, "no key goes to a metadata address": look_at("default", metadata, {})})


def test_a_real_question_is_asked_only_on_request(run: Run, model_of: Configured, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour, price = replies.yes_no(), {"input": 1.0, "output": 2.0}
    model_of.configure(endpoint.base_url, price=price)
    _, parts = examined(run, url=NOWHERE)
    assert "answer of default" not in parts
    assert endpoint.calls == ()
    found = {"an answer": model_of.ask(endpoint.base_url, price=price)}
    assert len(endpoint.calls) == 1
    for name, behaviour, more in (
        ("no tokens", replies.yes_no(usage=None), {"price": price}),
        ("refused", replies.failing(404, "no such model"), {}),
        ("no end", replies.hangs(), {"timeout_s": 0.2}),
    ):
        endpoint.behaviour = behaviour
        found[name] = model_of.ask(endpoint.base_url, **more)
    check_findings("answers", found)


@pytest.mark.parametrize("dialect", ["openai", "systemone"])
def test_the_option_limit_of_a_decision_model_is_found_out(model_of: Configured, dialect: str) -> None:
    with DecisionEndpoint() as server:
        decider = {"provider": "decisions", "dialect": dialect, "model": MODEL}
        assert model_of(server.base_url, **decider).result == "ok"
        assert not server.bodies
        found = {"255 options": model_of.ask(server.base_url, **decider)}
        for limit in (208, 26):
            server.max_options = limit
            found[f"{limit} options"] = model_of.ask(server.base_url, **decider)
        found["configured"] = model_of.ask(server.base_url, **decider, max_options=26)
        server.change = lambda _reply: {"answers": [] if dialect == "openai" else {}}
        found["no answer"] = model_of.ask(server.base_url, **decider, max_options=26)
        check_findings("decisions", found)


# --- judge models of the judged model's family, and versions of judges that are no longer there ---
def test_models_that_leave_their_maker_s_api_are_named_and_have_families() -> None:
    for name, end in TABLES["ends"]:
        settings = Settings(models={"default": ModelSettings(base_url="http://localhost:9/v1", model=name)})
        ending = [fault for fault in setting_warnings(settings) if fault.code == "ending-model"]
        texts = [f"{name} of [models.default] leaves its maker's API on {end}"] if end else []
        assert [fault.text for fault in ending] == texts
        assert all(fault.fix.startswith("choose ") for fault in ending), name
    for name, expected in TABLES["families"]:
        assert families(name) == set(expected), name


def test_a_model_that_judges_its_own_family_is_named(keyspace: Keyspace) -> None:
    judge = ModelSettings(provider="openai", model="gpt-6-luna", label="strict")
    settings = structs.replace(settings_of(keyspace), models={"default": judge})
    verdict = make_verdict(judge_model="strict", model="claude-sonnet-4")
    keyspace.send(verdict, structs.replace(verdict, evaluation_id="b", model=None))
    found = {"another family": same_family(settings, keyspace.store)}
    keyspace.send(structs.replace(verdict, evaluation_id="c", model="gpt-5"))
    found["its own"] = same_family(settings, keyspace.store)
    panel = COMBINE.with_value(Rule(name="all", judges=("safety",), model=("default", "other")), "majority")
    models = settings.models | {"other": ModelSettings(provider="openai", model="o3")}
    found["in a panel"] = same_family(structs.replace(settings, models=models, rules=(panel,)), keyspace.store)
    check_findings("families", found)


def die(keyspace: Keyspace, reason: str, judge: str) -> None:
    """Make the first waiting evaluation a dead letter as well."""
    batch = next(iter(keyspace.batches().values()))
    evaluation = structs.replace(batch.items[0].evaluations[0], id=f"{reason} {judge}", judge=judge)
    letter = DeadLetter(1, evaluation, batch.grader, batch.judge_model, reason, 1, 1.0, 2.0, item=batch.items[0])
    dead_verdict = make_verdict(evaluation_id=evaluation.id, outcome="unscored", reason=reason)
    assert Ledger(keyspace.store, settings_of(keyspace)).add_dead_letter([(letter, dead_verdict)]) == [True]


def test_unknown_judge_versions_are_named_with_a_fix(keyspace: Keyspace) -> None:
    def found(*times: float) -> list[Finding]:
        clock = iter(times)
        return judge_versions(settings_of(keyspace), keyspace.store, lambda: next(clock, times[-1]))

    choose(keyspace, 3)
    die(keyspace, "internal_error", "gone")
    die(keyspace, "unknown_judge_version", "safety")
    # The clock stands: the doctor looks for two seconds, and this machine may pause longer.
    findings = {"all known": found(0.0)}
    for batch_id, batch in keyspace.batches().items():
        payload = msgspec.json.encode(batch).replace(catalogue()["safety"].version.encode(), b"0" * 32)
        keyspace.client.set(keyspace.keys.batch(batch_id), payload)
    findings["no longer than it may"] = found(0.0, 1.0, 2.5, 3.0)
    die(keyspace, "unknown_judge_version", "gone")
    keyspace.client.set(keyspace.keys.batch("newer"), b'{"v": 9}')
    keyspace.client.zadd(keyspace.keys.leases, {"newer": 9e15})
    check_findings("judge_versions", {**findings, "others": found(0.0)})


# --- whether a worker runs each role, and what workers have had to give up on ---
@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(appendonly=True) as server:
        yield server


@pytest.fixture
def store(server: EmbeddedRedis) -> Iterator[Store]:
    store = at(server.url)
    yield store
    store.call(lambda client: client.flushdb())
    store.close()


def parts_of(run: Run, server: EmbeddedRedis) -> dict[str, Part]:
    return examined(run, url=server.url)[1]


def test_roles_are_run_by_workers_that_make_progress(run: Run, server: EmbeddedRedis, store: Store) -> None:
    found: dict[str, Part] = {}

    def look(case: str, *more: str) -> None:
        parts = parts_of(run, server)
        names = [name for name in parts if name == "workers" or name.startswith("role ") or name in more]
        found.update({f"{case}, {name}": parts[name] for name in names})

    for _ in range(3):
        store.call(lambda client: client.xadd(store.keys.traces, {"v": 1, "t": "{}"}))
    look("entries wait")
    store.call(lambda client: client.set(store.keys.layout, LAYOUT))
    look("a worker was here once")
    store.call(lambda client: client.delete(store.keys.traces))
    be_present(server.url, ingest=True, export=True, monitor=True)
    look("none judges")
    store.call(lambda client: client.flushdb())
    be_present(server.url, ingest=False)
    be_present(server.url, ingest=False, judge=True, export=True)
    look("ingest without progress")
    be_present(server.url, ingest=True)
    look("one with progress")
    store.call(lambda client: client.flushdb())
    store.make_group(store.keys.traces, "ingest")
    store.call(lambda client: client.xadd(store.keys.traces, {"v": 1}))
    store.read_group(store.keys.traces, "ingest", "me", count=1, block_ms=1)
    store.call(lambda client: client.xadd(store.keys.verdicts, {"v": 1}))
    for group in ("metrics", "monitor"):
        store.make_group(store.keys.verdicts, group)
        store.read_group(store.keys.verdicts, group, "me", count=1, block_ms=1)
    Heartbeat(store, lambda: {"m": 0.0}).exchange_circuits()
    look("seen by what it read")
    # What workers gave up on and left behind.
    store.call(lambda client: client.flushdb())
    be_present(server.url)
    for name in ("metrics", "receiver:old"):
        store.make_group(store.keys.verdicts, name)
    for circuits in ({"gpt": 12.5, "other": None}, {"gpt": 0.0, "other": 0.0}):
        Heartbeat(store, lambda circuits=circuits: circuits).exchange_circuits()
    account = store.keys.account_all
    store.call(lambda client: client.hset(account, "chosen", 5))
    look("left", "removed receivers", "circuits", "accounting")
    store.call(lambda client: client.hset(account, "scored", 7))
    look("twice", "accounting")
    store.call(lambda client: client.flushdb())
    store.call(lambda client: client.hset(store.keys.dead, "e1", "{}"))
    store.call(lambda client: client.hset(account, mapping={"chosen": 1, "dead": 1}))
    be_present(server.url)
    look("given up", "dead letters", "redis keys")
    store.call(lambda client: client.set(f"{store.keys.prefix}:chosen:{1:032x}", "1"))
    look("of TraceJudge 0.1", "redis keys")
    check_findings("workers", found)


def test_a_worker_with_another_configuration_is_named(run: Run, server: EmbeddedRedis, store: Store) -> None:
    be_present(server.url)
    found = {"a worker of 0.2": parts_of(run, server)["configurations"]}
    own = load({}).config_hash
    for case, config_hash in (("the same", own), ("another", "0123abcd")):
        Heartbeat(store, config_hash=config_hash).beat({"ingest": True})
        found[case] = parts_of(run, server)["configurations"]
    what = re.sub(r"worker \S+ ", "worker NAME ", found["another"].what).replace(own, "OWN")
    check_findings("configurations", found | {"another": found["another"]._replace(what=what)})
    away = [broken(f"partition {number}: redis", "nothing listens at a:1", "start it") for number in (0, 2)]
    findings = [ok("packages"), *away, ok("partition 1: redis", "b:1"), ok("partition 1: roles")]
    names = ["packages", "partitions 0, 2: redis", "partition 1: redis", "partition 1: roles"]
    assert [finding.name for finding in join_partitions(findings)] == names, "what partitions have in common"


def test_rules_that_match_nothing_are_named(
    run: Run, server: EmbeddedRedis, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [
        {"name": "all", "judges": ["safety"]},
        {"name": "typo", "judges": ["safety"], "where": {"service": "suport-*"}},
        {"name": "without context", "judges": ["groundedness"], "where": {"has": ["context"]}},
    ]
    monkeypatch.setenv("TRACEJUDGE_RULES", json.dumps(rules))
    assert not any(name.startswith("rule") for name in parts_of(run, server)), "nothing was published"
    traces = [("shop", "1"), ("support-bot", "2"), ("support-bot", "3")]
    yesterday = store.now_ms() - 90_000_000
    for number, (service, name) in enumerate((("old-service", "0"), *traces)):
        trace = json.dumps({"trace_id": name, "service": service, "output": "a"})
        entry_id = f"{yesterday}-1" if service == "old-service" else f"{store.now_ms()}-{number}"
        store.call(lambda client: client.xadd(store.keys.traces, {"v": 1, "t": trace}, entry_id))  # noqa: B023
    parts = parts_of(run, server)
    found = {name: parts[name] for name in ("rule typo", "rule without context")}
    assert "rule all" not in parts
    monkeypatch.setenv("TRACEJUDGE_RULES", json.dumps(rules[:1]))
    parts = parts_of(run, server)
    assert "service names" not in parts
    trace = json.dumps({"trace_id": "4", "service": "unknown_service:node", "output": "a"})
    store.call(lambda client: client.xadd(store.keys.traces, {"v": 1, "t": trace}))
    found |= {"rules": parts["rules"], "service names": parts_of(run, server)["service names"]}
    check_findings("rules", found)


def test_two_senders_of_one_call_in_two_partitions_are_named(clustered: Run, cluster: Cluster, prefix: str) -> None:
    call = {"trace_id": "t1", "input": "Which plan?", "output": "The small one.", "service": "shop"}
    other = {**call, "trace_id": "t2"}
    # Two answers of one trace are two calls.
    lines = [call, {**call, "session_id": "s1"}, other, {**other, "session_id": "s2", "output": "The large one."}]
    with three_partitions(cluster.url, prefix):
        assert clustered("publish", write_lines("traces.jsonl", lines)).code == 0
        parts = {part["name"]: part for part in clustered("doctor", "--json").document["parts"]}
    said = parts["same call"]["what"]
    for sender in ("'shop' in session 's1' (producer ", "'shop' without a session (producer "):
        assert sender in said, said
    assert "'s2'" not in said
    assert "session id" in parts["same call"]["mend"]
