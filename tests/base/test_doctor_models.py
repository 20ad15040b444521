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
from support.commands import NOWHERE, ROLES, SECRET, Part, Run, at, be_present, examined, part, write_lines
from support.decision_endpoint import MODEL, DecisionEndpoint
from support.endpoint import ChatEndpoint
from support.judging import choose
from support.loopback import LoopbackServer
from support.processes import free_port
from support.stages import Keyspace, make_verdict, settings_of, three_partitions
from support.tables import read_table

from judges.core.model import ModelSettings
from judges.models.registry import PROVIDERS
from worker.base.doctor import http_endpoints as endpoints
from worker.base.doctor.command import families, join_partitions, judge_versions, same_family
from worker.base.doctor.finding import broken, ok, warning
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
    port = free_port()
    away = ("broken", f"nothing listens at http://127.0.0.1:{port}/v1/models")
    assert model_of(f"http://127.0.0.1:{port}/v1")[:2] == away
    unknown = "http://no-such-host.invalid/v1"
    assert model_of(unknown).what == f"the name of {unknown}/models cannot be resolved"
    server = stack.enter_context(Lister())
    checked = model_of(f"{server.root_url}/v1".replace("http://", "https://"))
    assert (checked.result, "TLS handshake" in checked.what) == ("broken", True)
    monkeypatch.setattr(endpoints, "_TIMEOUT_S", ENDPOINT_TIMEOUT_S)
    assert ENDPOINT_TIMEOUT_S < 5
    server = stack.enter_context(Lister(delay_s=100))
    began = time.monotonic()
    checked = model_of(f"{server.root_url}/v1")
    assert (checked.result, time.monotonic() - began < 30) == ("broken", True)
    assert checked.what.endswith("does not answer in time")


def _key_file() -> str:
    path = Path("key")
    path.write_text(f"{SECRET}\n", encoding="utf-8")
    path.chmod(0o600)
    return str(path)


def test_a_key_is_fixed_where_it_is_kept(run: Run, model_of: Configured, monkeypatch: pytest.MonkeyPatch) -> None:
    _key_file()
    for settings, fix in (
        ({"api_key_env": "JUDGE_KEY"}, "correct the key in the variable JUDGE_KEY (api_key_env)"),
        ({"api_key_env": None, "api_key_file": "key"}, "correct the key in the file key (api_key_file)"),
        ({"api_key_env": None}, "name its key by api_key_env or api_key_file"),
    ):
        with Lister(401) as server:
            assert model_of(f"{server.root_url}/v1", **settings).mend == fix
    absent = model_of("http://127.0.0.1:1/v1", api_key_env=None, api_key_file="absent")
    why = "api_key_file: the file absent cannot be read (No such file or directory)"
    assert absent == ("broken", why, "give its path")
    monkeypatch.delenv("JUDGE_KEY")
    unset = ("broken", "api_key_env: the variable JUDGE_KEY is not set", "export it, or leave the line out")
    assert model_of("http://127.0.0.1:1/v1") == unset
    _, parts = examined(run, "--ask", url=NOWHERE)
    assert (parts["model default"].result, "answer of default" in parts) == ("broken", False), "told once"
    # No key goes to a metadata address.
    (finding,) = look_at("default", ModelSettings(base_url="http://169.254.169.254/v1", model="m"), {})
    assert finding.result == "broken"
    assert "allow_link_local" in f"{finding.what} {finding.fix}"


def test_a_real_question_is_asked_only_on_request(run: Run, model_of: Configured, endpoint: ChatEndpoint) -> None:
    endpoint.behaviour, price = replies.yes_no(), {"input": 1.0, "output": 2.0}
    model_of.configure(endpoint.base_url, price=price)
    _, parts = examined(run, url=NOWHERE)
    assert "answer of default" not in parts
    assert endpoint.calls == ()
    checked = model_of.ask(endpoint.base_url, price=price)
    assert checked.result == "ok"
    assert checked.what.startswith("answers; ")
    assert checked.what.endswith(" USD")
    assert len(endpoint.calls) == 1
    endpoint.behaviour = replies.yes_no(usage=None)
    unknown = "answers; it reports no tokens, so the cost is unknown"
    assert model_of.ask(endpoint.base_url, price=price).what == unknown
    endpoint.behaviour = replies.failing(404, "no such model")
    message = f'HTTP 404 from {endpoint.base_url}/chat/completions; check base_url and model; it says: "no such model"'
    assert model_of.ask(endpoint.base_url)[:2] == ("broken", message)
    endpoint.behaviour = replies.hangs()
    slow = model_of.ask(endpoint.base_url, timeout_s=0.2)
    assert (slow.result, "raise `timeout_s` or lower" in slow.mend) == ("broken", True)


@pytest.mark.parametrize("dialect", ["openai", "systemone"])
def test_the_option_limit_of_a_decision_model_is_found_out(model_of: Configured, dialect: str) -> None:
    with DecisionEndpoint() as server:
        decider = {"provider": "decisions", "dialect": dialect, "model": MODEL}
        assert model_of(server.base_url, **decider).result == "ok"
        assert not server.bodies
        checked = model_of.ask(server.base_url, **decider)
        what = "answers, also questions with 255 options; 240 tokens in, 6 out, no price configured"
        assert (checked.result, checked.what) == ("ok", what)
        for limit in (208, 26):
            server.max_options = limit
            checked = model_of.ask(server.base_url, **decider)
            assert (checked.result, checked.mend) == ("warning", f"set max_options = {limit}")
            assert checked.what.startswith(f"answers, but refuses questions with more than {limit} options; 240 tokens")
        assert model_of.ask(server.base_url, **decider, max_options=26).result == "ok"
        server.change = lambda _reply: {"answers": [] if dialect == "openai" else {}}
        checked = model_of.ask(server.base_url, **decider, max_options=26)
        assert (checked.result, checked.mend) == ("broken", "check `dialect`, and whether the model decides")


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
    assert same_family(settings, keyspace.store) == [ok("model families", "no model judges answers of its own family")]
    keyspace.send(structs.replace(verdict, evaluation_id="c", model="gpt-5"))
    (finding,) = same_family(settings, keyspace.store)
    what = "strict judges answers of gpt-5: both are of the family GPT (1 of the newest 3 verdicts)"
    assert (finding.result, finding.what) == ("warning", what)
    panel = COMBINE.with_value(Rule(name="all", judges=("safety",), model=("default", "other")), "majority")
    models = settings.models | {"other": ModelSettings(provider="openai", model="o3")}
    _, finding = same_family(structs.replace(settings, models=models, rules=(panel,)), keyspace.store)
    assert finding.what == "o3 and strict vote in majority(o3,strict): both are of the family GPT"


def die(keyspace: Keyspace, reason: str, judge: str) -> None:
    """Make the first waiting evaluation a dead letter as well."""
    batch = next(iter(keyspace.batches().values()))
    evaluation = structs.replace(batch.items[0].evaluations[0], id=f"{reason} {judge}", judge=judge)
    letter = DeadLetter(1, evaluation, batch.grader, batch.judge_model, reason, 1, 1.0, 2.0, item=batch.items[0])
    dead_verdict = make_verdict(evaluation_id=evaluation.id, outcome="unscored", reason=reason)
    assert Ledger(keyspace.store, settings_of(keyspace)).add_dead_letter([(letter, dead_verdict)]) == [True]


WAITS = warning(
    "judge versions",
    "3 evaluations wait for other versions of safety (3)",
    "start a worker with the version that chose them, or wait: after 6 h they are given up; "
    "`tracejudge replay --since 6h --judge NAME` judges their traces by the new version",
)
GIVEN_UP = warning(
    "judge versions given up",
    "1 evaluations were given up for other versions of gone (1)",
    "`tracejudge dead drop --reason unknown_judge_version`, or `dead retry` where that version is back",
)


def test_unknown_judge_versions_are_named_with_a_fix(keyspace: Keyspace) -> None:
    def found(*times: float) -> list[object]:
        clock = iter(times)
        return judge_versions(settings_of(keyspace), keyspace.store, lambda: next(clock, times[-1]))

    choose(keyspace, 3)
    die(keyspace, "internal_error", "gone")
    die(keyspace, "unknown_judge_version", "safety")
    # The clock stands: the doctor looks for two seconds, and this machine may pause longer.
    assert found(0.0) == [ok("judge versions", "all waiting evaluations are known here")]
    for batch_id, batch in keyspace.batches().items():
        items = [
            structs.replace(
                item, evaluations=tuple(structs.replace(each, version="0" * 32) for each in item.evaluations)
            )
            for item in batch.items
        ]
        payload = msgspec.json.encode(structs.replace(batch, items=tuple(items)))
        keyspace.client.set(keyspace.keys.batch(batch_id), payload)
    (finding, *_) = found(0.0, 1.0, 2.5, 3.0)
    assert finding.what == "2 evaluations wait for other versions of safety (2)", "it looks no longer than it may"
    die(keyspace, "unknown_judge_version", "gone")
    keyspace.client.set(keyspace.keys.batch("newer"), b'{"v": 9}')
    keyspace.client.zadd(keyspace.keys.leases, {"newer": 9e15})
    assert found(0.0) == [WAITS, GIVEN_UP]


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
    for _ in range(3):
        store.call(lambda client: client.xadd(store.keys.traces, {"v": 1, "t": "{}"}))
    parts = parts_of(run, server)
    assert parts["workers"] == ("warning", "no worker runs yet; 3 entries wait", "start `tracejudge worker`")
    assert not any(name.startswith("role") for name in parts)
    store.call(lambda client: client.set(store.keys.layout, LAYOUT))
    assert parts_of(run, server)["role ingest"].what == "no worker runs it; 3 entries wait", "a worker was here once"
    store.call(lambda client: client.delete(store.keys.traces))
    be_present(server.url, ingest=True, export=True, monitor=True)
    parts = parts_of(run, server)
    assert [parts[f"role {role}"].result for role in ROLES] == ["ok", "broken", "ok", "ok"]
    fix = "start one: tracejudge worker --roles judge, or without --roles for all"
    assert parts["role judge"][1:] == ("no worker runs it", fix)
    # Workers of a role without progress are broken.
    store.call(lambda client: client.flushdb())
    be_present(server.url, ingest=False)
    be_present(server.url, ingest=False, judge=True, export=True)
    assert parts_of(run, server)["role ingest"][:2] == ("broken", "2 workers run it, and none makes progress")
    be_present(server.url, ingest=True)
    assert parts_of(run, server)["role ingest"][:2] == ("ok", "1 of 3 workers make progress")
    store.call(lambda client: client.flushdb())
    store.make_group(store.keys.traces, "ingest")
    store.call(lambda client: client.xadd(store.keys.traces, {"v": 1}))
    store.read_group(store.keys.traces, "ingest", "me", count=1, block_ms=1)
    store.call(lambda client: client.xadd(store.keys.verdicts, {"v": 1}))
    for group in ("metrics", "monitor"):
        store.make_group(store.keys.verdicts, group)
        store.read_group(store.keys.verdicts, group, "me", count=1, block_ms=1)
    Heartbeat(store, lambda: {"m": 0.0}).exchange_circuits()
    parts = parts_of(run, server)
    assert [parts[f"role {role}"].result for role in ROLES] == ["ok"] * 4
    assert parts["role ingest"].what == "a worker was seen; 1 entries wait"


def test_what_workers_gave_up_on_and_left_behind(run: Run, server: EmbeddedRedis, store: Store) -> None:
    be_present(server.url, ingest=True, judge=True, export=True, monitor=True)
    for name in ("metrics", "receiver:old"):
        store.make_group(store.keys.verdicts, name)
    Heartbeat(store, lambda: {"gpt": 12.5, "other": None}).exchange_circuits()
    Heartbeat(store, lambda: {"gpt": 0.0, "other": 0.0}).exchange_circuits()
    store.call(lambda client: client.hset(store.keys.account_all, "chosen", 5))
    parts = parts_of(run, server)
    removed = parts["removed receivers"]
    assert removed[:2] == ("warning", "no receiver of this configuration reads receiver:old")
    assert "XGROUP DESTROY tracejudge:verdicts receiver:old" in removed[2]
    open_circuits = ("broken", "open, since the endpoint fails or rejects requests: gpt")
    assert parts["circuits"][:2] == open_circuits
    assert "raise `timeout_s` or lower `max_in_flight`" in parts["circuits"][2]
    assert parts["accounting"] == ("broken", "they do not balance: 5 lost", "see `tracejudge account`")
    store.call(lambda client: client.hset(store.keys.account_all, "scored", 7))
    assert parts_of(run, server)["accounting"].what == "they do not balance: 2 counted twice"
    store.call(lambda client: client.flushdb())
    store.call(lambda client: client.hset(store.keys.dead, "e1", "{}"))
    store.call(lambda client: client.hset(store.keys.account_all, mapping={"chosen": 1, "dead": 1}))
    be_present(server.url)
    ended, parts = examined(run, url=server.url)
    assert (ended.code, parts["dead letters"][:2]) == (0, ("warning", "1 evaluations were given up"))
    store.call(lambda client: client.flushdb())
    assert "redis keys" not in parts_of(run, server)
    store.call(lambda client: client.set(f"{store.keys.prefix}:chosen:{1:032x}", "1"))
    old = ("broken", f"Redis holds {store.keys.prefix}:* of TraceJudge 0.1")
    assert parts_of(run, server)["redis keys"][:2] == old


def test_a_worker_with_another_configuration_is_named(run: Run, server: EmbeddedRedis, store: Store) -> None:
    be_present(server.url)
    assert parts_of(run, server)["configurations"].result == "ok", "a worker of 0.2 does not tell it"
    own = load({}).config_hash
    Heartbeat(store, config_hash=own).beat({"ingest": True})
    assert parts_of(run, server)["configurations"] == ("ok", "2 programs run with this one", "")
    Heartbeat(store, config_hash="0123abcd").beat({"judge": True})
    found = parts_of(run, server)["configurations"]
    assert found.result == "warning"
    assert re.search(rf"than the variables here \({own}\) run: worker \S+ \(0123abcd\)", found.what), found.what
    assert "--config" in found.mend
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
    seen = "of 3 traces of the last day; services seen: support-bot, shop"
    typo = ("warning", f"rule 'typo' matched none {seen}", "did you mean service = 'support-bot'?")
    assert parts["rule typo"] == typo
    assert parts["rule without context"].what == f"rule 'without context' matched none {seen}"
    assert "rule all" not in parts
    monkeypatch.setenv("TRACEJUDGE_RULES", json.dumps(rules[:1]))
    assert parts_of(run, server)["rules"] == ("ok", "each matched some of 3 traces of the last day", "")
    assert "service names" not in parts
    trace = json.dumps({"trace_id": "4", "service": "unknown_service:node", "output": "a"})
    store.call(lambda client: client.xadd(store.keys.traces, {"v": 1, "t": trace}))
    unnamed = parts_of(run, server)["service names"]
    assert unnamed[:2] == ("warning", "without a name: unknown_service:node")
    assert "OTEL_SERVICE_NAME" in unnamed[2]


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
