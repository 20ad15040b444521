"""`tracejudge doctor`: endpoints of models, keys and one real question; families and versions of judges; workers."""

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
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
from worker.base.doctor.command import (
    accounting,
    circuits,
    configurations,
    dead_letters,
    families,
    join_partitions,
    judge_versions,
    roles,
    same_family,
)
from worker.base.doctor.finding import Finding, broken, ok
from worker.base.doctor.lint import setting_warnings
from worker.base.doctor.matching import newest_traces
from worker.base.doctor.redis_server import foreign_keys
from worker.base.embedded import EmbeddedRedis
from worker.core.config.loading import load
from worker.core.config.settings import COMBINE, Rule, Settings, Where
from worker.core.queue.ledger import DeadLetter, Ledger
from worker.core.storage.client import LAYOUT, Store
from worker.core.telemetry.health import Heartbeat

TABLES = read_table(__file__, "doctor")
pytestmark = pytest.mark.usefixtures("_patient_doctor")
Look = Callable[[str, ModelSettings, Mapping[str, str]], Sequence[Finding]]
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


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", SECRET)


def looked_at(look: Look, base_url: str, **more: object) -> Finding:
    """Return what a check finds of the default model, which never shows its key."""
    model = {"provider": "openai", "base_url": base_url, "model": "judge-1", "api_key_env": "JUDGE_KEY", **more}
    (finding,) = look("default", msgspec.convert(model, ModelSettings), os.environ)
    assert SECRET not in repr(finding)
    return finding


model_of = partial(looked_at, endpoints.endpoint)
answer_of = partial(looked_at, endpoints.ask)


def test_each_answer_of_an_endpoint_has_its_finding(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.fixture
def in_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """Settings of a key in a file."""
    monkeypatch.chdir(tmp_path)
    Path("key").write_text(f"{SECRET}\n", encoding="utf-8")
    Path("key").chmod(0o600)
    return {"api_key_env": None, "api_key_file": "key"}


def test_each_provider_is_asked_in_its_own_way(in_file: dict[str, str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS, "echo", echo_provider.ROW)
    for provider, tail, settings, path, expected in (
        ("anthropic", "", {}, "/v1/models", {"x-api-key": SECRET, "anthropic-version": "2023-06-01"}),
        ("anthropic", "/v1", in_file, "/v1/models", {"x-api-key": SECRET}),
        ("openai", "/v1", in_file, "/v1/models", {"Authorization": f"Bearer {SECRET}"}),
        ("echo", "", {}, "/echoes", {"x-echo-key": SECRET}),
    ):
        with Lister() as server:
            assert model_of(f"{server.root_url}{tail}", provider=provider, **settings).result == "ok", provider
        ((_, asked, headers),) = server.asked
        assert (asked, {name: headers[name] for name in expected}) == (path, expected), provider


@pytest.mark.usefixtures("_no_names")
def test_an_endpoint_that_is_not_there(monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> None:
    found = {"nothing listens": model_of(f"http://127.0.0.1:{free_port()}/v1")}
    found["no such name"] = model_of("http://no-such-host.invalid/v1")
    server = stack.enter_context(Lister())
    found["no TLS"] = model_of(f"{server.root_url}/v1".replace("http://", "https://"))
    assert ENDPOINT_TIMEOUT_S < 5
    monkeypatch.setattr(endpoints, "_TIMEOUT_S", 0.5)
    found["no answer"] = model_of(f"{stack.enter_context(Lister(delay_s=100)).root_url}/v1")
    check_findings("endpoints", found)


def test_a_key_is_fixed_where_it_is_kept(
    run: Run, in_file: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for settings in ({"api_key_env": "JUDGE_KEY"}, in_file, {"api_key_env": None}):
        with Lister(401) as server:
            found[f"refused: {settings}"] = model_of(f"{server.root_url}/v1", **settings)
    found["no such file"] = model_of("http://127.0.0.1:1/v1", api_key_env=None, api_key_file="absent")
    monkeypatch.delenv("JUDGE_KEY")
    found["no such variable"] = model_of("http://127.0.0.1:1/v1")
    found["no key goes to a metadata address"] = model_of("http://169.254.169.254/v1")
    check_findings("keys", found)
    model = {"provider": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "judge-1", "api_key_env": "JUDGE_KEY"}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": model}))
    _, parts = examined(run, "--ask", url=NOWHERE)
    assert (parts["model default"].result, "answer of default" in parts) == ("broken", False), "told once"


def test_a_real_question_is_asked_only_on_request(
    run: Run, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.behaviour, price = replies.yes_no(), {"input": 1.0, "output": 2.0}
    model = {"provider": "openai", "base_url": endpoint.base_url, "model": "judge-1", "price": price}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": model}))
    _, parts = examined(run, url=NOWHERE)
    assert "answer of default" not in parts
    assert endpoint.calls == ()
    found: dict[str, Part | Finding] = {"an answer": part(run, "answer of default", "--ask")}
    assert len(endpoint.calls) == 1
    for name, behaviour, more in (
        ("no tokens", replies.yes_no(usage=None), {"price": price}),
        ("refused", replies.failing(404, "no such model"), {}),
        ("no end", replies.hangs(), {"timeout_s": 0.2}),
    ):
        endpoint.behaviour = behaviour
        found[name] = answer_of(endpoint.base_url, **more)
    check_findings("answers", found)


@pytest.mark.parametrize("dialect", ["openai", "systemone"])
def test_the_option_limit_of_a_decision_model_is_found_out(dialect: str) -> None:
    with DecisionEndpoint() as server:
        decider = {"provider": "decisions", "dialect": dialect, "model": MODEL}
        assert model_of(server.base_url, **decider).result == "ok"
        assert not server.bodies
        found = {"255 options": answer_of(server.base_url, **decider)}
        for limit in (208, 26):
            server.max_options = limit
            found[f"{limit} options"] = answer_of(server.base_url, **decider)
        found["configured"] = answer_of(server.base_url, **decider, max_options=26)
        server.change = lambda _reply: {"answers": [] if dialect == "openai" else {}}
        found["no answer"] = answer_of(server.base_url, **decider, max_options=26)
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


def test_roles_are_run_by_workers_that_make_progress(server: EmbeddedRedis, store: Store) -> None:
    found: dict[str, Finding | Sequence[Finding]] = {}
    settings = Settings(redis_url=server.url)

    def look(case: str, *more: Callable[[Store], Sequence[Finding]]) -> None:
        findings = [*roles(settings, store), *(finding for check in more for finding in check(store))]
        found.update({f"{case}, {finding.name}": finding for finding in findings})

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
    for held in ({"gpt": 12.5, "other": None}, {"gpt": 0.0, "other": 0.0}):
        Heartbeat(store, lambda held=held: held).exchange_circuits()
    account = store.keys.account_all
    store.call(lambda client: client.hset(account, "chosen", 5))
    look("left", circuits, accounting)
    store.call(lambda client: client.hset(account, "scored", 7))
    found["twice, accounting"] = accounting(store)
    store.call(lambda client: client.flushdb())
    store.call(lambda client: client.hset(store.keys.dead, "e1", "{}"))
    store.call(lambda client: client.hset(account, mapping={"chosen": 1, "dead": 1}))
    be_present(server.url)
    look("given up", dead_letters, foreign_keys)
    store.call(lambda client: client.set(f"{store.keys.prefix}:chosen:{1:032x}", "1"))
    found["of TraceJudge 0.1, redis keys"] = foreign_keys(store)
    check_findings("workers", found)


def test_a_worker_with_another_configuration_is_named(server: EmbeddedRedis, store: Store) -> None:
    be_present(server.url)
    settings = load({})
    found = {"a worker of 0.2": [*configurations(settings, store, None)]}
    own = settings.config_hash
    for case, config_hash in (("the same", own), ("another", "0123abcd")):
        Heartbeat(store, config_hash=config_hash).beat({"ingest": True})
        found[case] = [*configurations(settings, store, None)]
    (another,) = found["another"]
    what = re.sub(r"worker \S+ ", "worker NAME ", another.what).replace(own, "OWN")
    check_findings("configurations", found | {"another": [structs.replace(another, what=what)]})
    away = [broken(f"partition {number}: redis", "nothing listens at a:1", "start it") for number in (0, 2)]
    findings = [ok("packages"), *away, ok("partition 1: redis", "b:1"), ok("partition 1: roles")]
    names = ["packages", "partitions 0, 2: redis", "partition 1: redis", "partition 1: roles"]
    assert [finding.name for finding in join_partitions(findings)] == names, "what partitions have in common"


def test_rules_that_match_nothing_are_named(server: EmbeddedRedis, store: Store) -> None:
    every, typo, needy = (
        Rule(name="all", judges=("safety",)),
        Rule(name="typo", judges=("safety",), where=Where(service="suport-*")),
        Rule(name="without context", judges=("groundedness",), where=Where(has=("context",))),
    )

    def look(*rules: Rule) -> dict[str, Finding]:
        settings = Settings(redis_url=server.url, rules=rules)
        return {finding.name: finding for finding in newest_traces(settings, store)}

    assert look(every, typo, needy) == {}, "nothing was published"
    traces = [("shop", "1"), ("support-bot", "2"), ("support-bot", "3")]
    yesterday = store.now_ms() - 90_000_000
    for number, (service, name) in enumerate((("old-service", "0"), *traces)):
        trace = json.dumps({"trace_id": name, "service": service, "output": "a"})
        entry_id = f"{yesterday}-1" if service == "old-service" else f"{store.now_ms()}-{number}"
        store.call(lambda client: client.xadd(store.keys.traces, {"v": 1, "t": trace}, entry_id))  # noqa: B023
    found = look(every, typo, needy)
    assert found.keys() == {"rule typo", "rule without context"}
    found |= look(every)
    assert "service names" not in found
    trace = json.dumps({"trace_id": "4", "service": "unknown_service:node", "output": "a"})
    store.call(lambda client: client.xadd(store.keys.traces, {"v": 1, "t": trace}))
    check_findings("rules", found | {"service names": look(every)["service names"]})


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
