"""One battery for all receivers by HTTP: each keeps each verdict once, whatever its server does.

The servers of tests/support/backends.py refuse what is not as documented.
"""

import asyncio
import gzip
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from support import backends
from support.backends import BACKENDS, KEY, PUBLIC_KEY, Backend
from support.commands import Run, at, be_present, examined, tuned
from support.judging import refuse
from support.otlp import Accept, OtlpReceiver
from support.processes import wait_until
from support.stages import Keyspace, make_verdict, samples, select_metrics, settings_of
from support.tables import read_table

from judges.core.model import ModelSettings
from judges.core.verdict import Call, Score, Verdict
from judges.requests.redaction import Redact
from worker.base.delivery.feature import DeliveryKeys
from worker.base.delivery.receiver_delivery import PARKED_FOR_S, ReceiverExporter
from worker.base.doctor.finding import Finding
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.base.lookup.feature import LookupKeys
from worker.base.lookup.label_store import Label, write_labels
from worker.core.config.loading import load
from worker.core.config.settings import Settings, SettingsError
from worker.core.features import find_exporters, installed_tables
from worker.core.storage.client import StoreError
from worker.core.telemetry.metrics import Metrics
from worker.features.receivers.feature import FileSettings
from worker.features.receivers.files import FileExporter, locked, tidy
from worker.features.receivers.webhook import WebhookExporter

TABLES = read_table(__file__, "receivers")
MIN_WAIT_S = 0.1
KINDS = installed_tables()["receivers"].kinds
MODELS = {"default": ModelSettings(provider="lexical"), "big": ModelSettings(model="big", base_url="http://localhost")}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECEIVER_KEY", KEY)
    monkeypatch.setenv("RECEIVER_PUBLIC_KEY", PUBLIC_KEY)
    monkeypatch.setenv("RECEIVER_SECRET", KEY)


def receiver(options: dict[str, Any]) -> Any:
    return msgspec.convert(options, KINDS[options["kind"]])


def verdict(number: int, **fields: Any) -> Verdict:
    """Make a scored verdict; its evaluation id is also that of the run or trace in the receiver."""
    name = f"{number + 1:032x}"
    tags = {kind.trace_tag: name for kind in KINDS.values() if kind.trace_tag}
    score = Score("safety", 1.0, 1.0, "yes", passed=True, rationale="It is kind.")
    defaults = {"outcome": "scored", "scores": (score,), "judge_model": "big", "tags": tags, "environment": "prod"}
    return make_verdict(number, **{**defaults, **fields})


class Sending:
    """One worker's exporter, whose waits pass at once and are kept."""

    def __init__(self, keyspace: Keyspace, name: str = "mine", **settings: Any) -> None:
        self.settings: Settings = settings_of(keyspace, models=MODELS, **settings)
        self.metrics = Metrics(self.settings)
        (made,) = (each for group, each in find_exporters(self.settings).items() if group == f"receiver:{name}")
        exporter = made.make(self.settings, keyspace.store, self.metrics)
        assert isinstance(exporter, ReceiverExporter)
        self.exporter = exporter
        exporter.stale_ms, exporter.gather_s = 0, 0.0
        exporter.wait = self._wait  # type: ignore[method-assign]
        exporter.prepare()
        self.waits: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def turn(self) -> None:
        self.exporter._next_claim = self.exporter._next_parked = 0.0
        self.exporter.run_once()

    @property
    def dropped(self) -> dict[str, float]:
        metric_values = select_metrics(samples(self.metrics), "export_dropped_total")
        return {reason.removeprefix("reason="): amount for (_, _, reason), amount in metric_values.items()}

    def _wait(self, seconds: float) -> bool:
        # Shorter ones keep the distance between two requests.
        if seconds > MIN_WAIT_S:
            self.waits.append(seconds)
            self.meanwhile()
        return False


@pytest.fixture
def sender(keyspace: Keyspace) -> Iterator[Callable[..., Sending]]:
    with ExitStack() as stack:

        def make(options: dict[str, Any], **settings: Any) -> Sending:
            sending = Sending(keyspace, receivers={"mine": receiver(options)}, **settings)
            stack.callback(getattr(sending.exporter, "client", stack).close)
            return sending

        yield make


def ids_in(path: Path) -> list[str]:
    """Read the evaluation ids of a file of an archive, and skip lines that were cut."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    return [json.loads(line)["evaluation_id"] for line in lines if line.endswith(b"}")]


def findings(settings: Settings) -> list[Finding]:
    row = find_exporters(settings)["receiver:mine"]
    return [finding for check in row.checks(settings) for finding in check.run()]


@pytest.fixture(params=BACKENDS, ids=lambda kind: kind.kind)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with request.param() as server:
        yield server


async def cut(request: web.Request) -> web.StreamResponse:
    """Announce more than is sent."""
    response = web.StreamResponse(status=200, headers={"content-length": "1000"})
    await response.prepare(request)
    await response.write(b"{")
    assert request.transport is not None
    request.transport.abort()
    return response


def retry_later(seconds: int) -> Callable[[web.Request], web.Response]:
    return lambda _request: web.Response(status=429, headers={"Retry-After": str(seconds)})


def names(count: int, *without: int) -> list[str]:
    return [f"{number + 1:032x}" for number in range(count) if number not in without]


def pending(keyspace: Keyspace) -> int:
    return keyspace.pending("receiver:mine", keyspace.keys.verdicts)


def test_each_admitted_verdict_is_kept_once_as_documented(keyspace: Keyspace, backend: Backend, sender: Any) -> None:
    # Without export_explanations no rationale is sent, whoever says so.
    fields = {"rationale": "It is kind.", "details": {"sentences": [{"text": "It is kind."}]}}
    keyspace.send(verdict(0, **fields))
    sender(backend.settings(), export_explanations=False).turn()
    keyspace.send(verdict(1, **fields))
    sender({**backend.settings(), "export_explanations": False}, export_explanations=True).turn()
    assert (backend.refusals, backend.evaluations()) == ([], names(2))
    assert "kind." not in json.dumps(backend.stored)
    worker = sender(backend.settings(), export_explanations=True)
    keyspace.send(*map(verdict, range(2, 9)), verdict(9, origin="repeat"), verdict(10, origin="canary"))
    worker.turn()
    assert (backend.refusals, backend.evaluations(), worker.dropped) == ([], names(9), {})
    assert (pending(keyspace), worker.waits) == (0, [])
    assert "It is kind." in json.dumps(backend.stored)
    failing = (Score("safety", 0.0, 0.0, "no", passed=False),)
    worker = sender({**backend.settings(), "services": ["sho*"], "judges": ["safety"], "only": "failed"})
    keyspace.send(verdict(9), verdict(10, scores=failing), verdict(11, scores=failing, service="desk"))
    keyspace.send(verdict(12, scores=failing, judge="groundedness"))
    worker.turn()
    assert (backend.refusals, backend.evaluations(), worker.dropped) == ([], names(11, 9), {})
    assert pending(keyspace) == 0


def test_each_verdict_arrives_after_any_fault_of_the_server(
    keyspace: Keyspace, backend: Backend, sender: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full queue, a failure, a lost key, a proxy, a cut answer, and ten minutes away."""
    count = 0
    for case, answers in {
        "429": [retry_later(7), retry_later(3)],
        "500": [500, 500],
        "401": [401, 403],
        "503": [503, 502, 504],
        "a redirect": [lambda _request: web.Response(status=307, headers={"location": "http://localhost:9/"})],
        "a web page": [lambda _request: web.Response(text="<!doctype html><p>Sign in")],
    }.items():
        worker = sender(backend.settings())
        backend.answers.extend(answers)
        keyspace.send(*map(verdict, range(count, count + 3)))
        count += 3
        worker.turn()
        assert (backend.evaluations(), worker.dropped, pending(keyspace)) == (names(count), {}, 0), case
        assert len(worker.waits) == len(answers), case
        assert case != "429" or worker.waits == [7.0, 3.0]
    if isinstance(backend, backends.Langsmith):
        # Its answer where it is not, which is no unknown run.
        backend.answers.append(lambda _request: web.json_response({"detail": "Not Found"}, status=404))
    worker = sender(backend.settings())
    keyspace.send(*map(verdict, range(count, count + 3)))
    count += 3
    # Redis may fail meanwhile.
    with monkeypatch.context() as patched:
        for name in ("pipeline", "call", "run"):
            patched.setattr(keyspace.store, name, refuse)
        with pytest.raises(StoreError):
            worker.turn()
    worker.turn()
    assert (backend.evaluations(), worker.dropped, pending(keyspace)) == (names(count), {}, 0)
    worker = sender(backend.settings())
    backend.close()
    keyspace.send(*map(verdict, range(count, count + 3)))
    worker.meanwhile = lambda: backend.start() if len(worker.waits) == 35 else None
    worker.turn()
    assert sum(worker.waits) > 10 * 60
    assert (backend.evaluations(), worker.dropped, pending(keyspace)) == (names(count + 3), {}, 0)
    assert backend.refusals == []


def test_a_slow_or_cut_answer_is_no_second_verdict(keyspace: Keyspace, backend: Backend, sender: Any) -> None:
    keyspace.send(*map(verdict, range(3)))
    worker = sender(backend.settings())
    backend.answers.append(cut)
    worker.turn()
    # Its status says that the request was accepted. This server has not kept it; others that follow arrive.
    assert (worker.waits, worker.dropped, pending(keyspace)) == ([], {}, 0)
    assert backend.evaluations() in ([], names(3, 0))

    async def late() -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    backend.answers.append(lambda _request: late())
    keyspace.send(*map(verdict, range(3, 6)))
    worker.exporter.client.deadline_s = 0.5
    worker.meanwhile = lambda: setattr(worker.exporter.client, "deadline_s", 30.0)
    worker.turn()
    assert (worker.waits, pending(keyspace), worker.dropped) == ([0.5], 0, {})
    assert set(names(6, 0, 1, 2)) <= set(backend.evaluations())


def test_what_is_sent_twice_is_kept_once(
    keyspace: Keyspace, backend: Backend, sender: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker is killed after its requests, and before the acknowledgement; another one takes over.
    keyspace.send(*map(verdict, range(5)))
    first = sender(backend.settings())
    with monkeypatch.context() as patched:
        patched.setattr(type(first.exporter), "_acknowledge_delivered", lambda _self: None)
        if isinstance(backend, backends.Mlflow):
            # It has no keys that make a repeat harmless: it is asked, here after two failures, what it has.
            patched.setattr(type(first.exporter._memory), "finish", lambda *_: None)
        first.turn()
    assert pending(keyspace) == 5
    second = sender(backend.settings())
    backend.answers.extend([503, 502] if isinstance(backend, backends.Mlflow) else [])
    second.turn()
    assert (backend.evaluations(), backend.refusals, pending(keyspace)) == (names(5), [], 0)
    assert second.dropped == {}

    # The server, or a proxy before it, fails after it has stored the verdict.
    def stored(status: int) -> Callable[[web.Request], web.Response]:
        def answer(request: web.Request) -> web.Response:
            backend.accept(request, json.loads(backend.raw or b"null"))
            return web.Response(status=status)

        return answer

    worker = sender(backend.settings())
    backend.answers.extend([stored(502), 503, stored(500)])
    keyspace.send(*map(verdict, range(5, 8)))
    worker.turn()
    assert (backend.evaluations(), backend.refusals, worker.dropped, pending(keyspace)) == (names(8), [], {}, 0)
    # A stop while the server is down loses nothing.
    backend.answers.extend([503, 500, 503])
    keyspace.send(*map(verdict, range(8, 11)))
    first = sender(backend.settings())
    first.exporter.wait = lambda _seconds: True
    for _ in range(2):
        first.turn()
    keyspace.send(verdict(11))
    assert first.exporter.stop(1)
    second = sender(backend.settings())
    second.turn()
    assert (backend.evaluations(), pending(keyspace)) == (names(12), 0)
    assert (first.dropped, second.dropped) == ({}, {})
    # A day later it is the same, to the byte.
    bodies, now = [], time.time
    for later_s in (0.0, 86_400.0):
        monkeypatch.setattr(time, "time", lambda later_s=later_s: now() + later_s)
        exporter = sender(backend.settings(), export_explanations=True).exporter
        bodies.append(b"".join(item.body for _, item in exporter.items(verdict(20))))
    assert bodies[0] == bodies[1] != b""
    if backend.kind in {"langfuse", "langsmith", "mlflow"}:
        assert b"2023-11-14T22:13:20.750" in bodies[1]


def test_an_item_that_the_server_refuses_is_dropped_alone(keyspace: Keyspace, backend: Backend, sender: Any) -> None:
    worker, count = sender(backend.settings()), 0
    for status in (400, 500):
        backend.status_of_poison = status
        backend.poison = {f"{count + 4:032x}"}
        keyspace.send(*map(verdict, range(count, count + 6)))
        count += 6
        worker.turn()
        assert pending(keyspace) == 0, status
    assert backend.evaluations() == names(12, 3, 9)
    assert sum(worker.dropped.values()) == 2, worker.dropped


@pytest.mark.slow("six reads that wait for entries")
def test_late_traces_wait(keyspace: Keyspace, backend: Backend, sender: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(backend, backends.Langfuse | backends.Webhook):
        pytest.skip("takes verdicts of unknown traces")
    now = [time.time()]
    monkeypatch.setattr("worker.base.delivery.receiver_delivery.time.time", lambda: now[0])
    is_span = isinstance(backend, backends.Phoenix)
    backend.absent = {f"{number + 1:0{16 if is_span else 32}x}" for number in (1, 3)}
    keyspace.send(*map(verdict, range(5)))
    worker = sender(backend.settings())
    worker.turn()
    assert (backend.evaluations(), worker.dropped, pending(keyspace), worker.waits) == (names(5, 1, 3), {}, 0, [])
    target = ForgetTarget(trace_id=f"{4:032x}")
    erased = Forgetting(keyspace.store, worker.settings, target, dry_run=True).run()
    assert erased.verdicts == 1 + 1, "in the outbox, and parked"
    backend.absent.discard(f"{2:0{16 if is_span else 32}x}")
    worker.turn()
    assert backend.evaluations() == names(5, 1, 3), "not before its time"
    for wait_s in PARKED_FOR_S:
        now[0] += wait_s + 1
        worker.turn()
        assert (backend.evaluations(), worker.waits) == (names(5, 3), [])
    assert worker.dropped == {"not_ingested": 1}
    assert keyspace.client.hlen(DeliveryKeys(keyspace.keys.prefix).receiver_parked("mine")[0]) == 0
    assert backend.refusals == []


def test_a_receiver_that_is_down_delays_no_other(keyspace: Keyspace) -> None:
    with backends.Phoenix() as up, backends.Phoenix() as down:
        down.answers.extend([503] * 1000)
        receivers = {"mine": receiver(up.settings()), "other": receiver(down.settings())}
        worker = Sending(keyspace, receivers=receivers)
        away = Sending(keyspace, "other", receivers=receivers)
        keyspace.send(*map(verdict, range(3)))
        away.meanwhile = lambda: down.answers.clear() if len(away.waits) == 5 and worker.turn() is None else None
        away.turn()
        assert (up.evaluations(), down.evaluations()) == (names(3), names(3))
        assert away.waits == [0.5, 1.0, 2.0, 4.0, 8.0]
        for each in (worker, away):
            each.exporter.client.close()  # type: ignore[attr-defined]


def test_traces_that_the_server_cannot_have_are_a_counted_skip(keyspace: Keyspace, sender: Any) -> None:
    for kind in (backends.Opik, backends.Langsmith, backends.Phoenix, backends.Mlflow):
        with kind() as server:
            worker = sender(server.settings())
            for number, name in enumerate(("", "an id", "0123456789abcdef", "f" * 128, "0" * 31 + "g")):
                tags = {"opik_trace_id": name, "langsmith_run_id": name}
                keyspace.send(verdict(number, tags=tags if name else {}, trace_id=name or "an id"))
            keyspace.send(verdict(5))
            worker.turn()
            assert (server.evaluations(), server.refusals) == ([f"{6:032x}"], []), kind
            assert (worker.dropped, pending(keyspace)) == ({"no_target": 5}, 0), kind


def test_control_characters_reach_no_server(keyspace: Keyspace, backend: Backend, sender: Any, tmp_path: Path) -> None:
    text = "It\0 is \x1bwarm\\u0000.\\\x01\n\tYes\u2028"
    score = Score("safety", 1.0, 1.0, "yes\0", passed=True, rationale=text)
    poisoned = verdict(0, scores=(score,), rationale=text, details={"sentences": [{"why\0": text}]}, environment="p\0")
    keyspace.send(poisoned, verdict(1))
    for settings in (backend.settings(), {"kind": "file", "path": str(tmp_path)}):
        worker = sender(settings, export_explanations=True)
        worker.turn()
        assert (worker.dropped, pending(keyspace)) == ({}, 0)
        keyspace.client.xgroup_destroy(keyspace.keys.verdicts, "receiver:mine")
        keyspace.client.hdel(keyspace.keys.groups, "verdicts:receiver:mine")
    assert backend.evaluations() == names(2)
    lines = "".join(path.read_text() for path in tmp_path.iterdir())
    for stored in (json.dumps(list(backend.stored.values()), ensure_ascii=False), lines):
        assert not [code for code in range(32) if f"\\u00{code:02x}" in stored.replace("\\\\", "")], stored
        assert json.dumps("It is warm\\u0000.\\\n\tYes\u2028", ensure_ascii=False)[1:-1] in stored


def test_phoenix_gets_annotations_of_sessions_traces_and_documents(keyspace: Keyspace, sender: Any) -> None:
    session = verdict(0, session_id="one", details={"session": {"trace_ids": []}}, judge_model="lexical")
    spans = [{"span_id": name, "documents": TABLES["documents"]} for name in ("00000000000000aa", None)]
    precision = (Score("precision", 0.5, 0.5, passed=True),)
    relevance = {"judge": "retrieval_relevance", "metrics": ("precision",), "scores": precision}
    with backends.Phoenix() as server:
        worker = sender(server.settings(), export_explanations=True)
        keyspace.send(session, verdict(1, span_id=None), verdict(2, **relevance, details={"spans": spans}))
        worker.turn()
        assert server.refusals == []
        kept = [each for items in server.stored.values() for each in items]
    targets = [{key: each[key] for key in each if key.endswith(("_id", "position"))} for each in kept]
    kinds = [each["annotator_kind"] for each in kept]
    assert [list(each) for each in zip(targets, kinds, strict=True)] == TABLES["annotations"]
    assert kept[0]["name"] == "retrieval_relevance_precision"
    assert kept[3]["result"] == {"label": "relevant", "score": 1.0, "explanation": "fits"}


def test_files_are_of_one_day(keyspace: Keyspace, sender: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_764_000_000.0]
    monkeypatch.setattr("worker.features.receivers.files.time.time", lambda: now[0])
    worker = sender({"kind": "file", "path": str(tmp_path / "archive"), "keep_days": 2})
    for day in range(4):
        keyspace.send(verdict(day))
        now[0] += 86_400 if day else 0
        worker.exporter._next_tidy = 0.0
        worker.turn()
    assert {path.name[9:19] + path.suffix: ids_in(path) for path in (tmp_path / "archive").iterdir()} == {
        "2025-11-25.gz": names(2, 0),
        "2025-11-26.gz": names(3, 0, 1),
        "2025-11-27.jsonl": names(4, 0, 1, 2),
    }
    assert (worker.dropped, pending(keyspace)) == ({}, 0)


def test_a_file_that_another_worker_compresses_meanwhile_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    old = folder / "verdicts-2025-11-25.host-1.jsonl"
    old.write_bytes(b'{"evaluation_id":"e1"}\n')
    with locked(old):
        # It has listed the file, and waits for the other worker.
        other = threading.Thread(target=tidy, args=(folder, FileSettings(path=str(folder))))
        other.start()
        wait_until(lambda: _waits_for(old), what="the second worker")
        with gzip.open(f"{old}.gz", "wb") as compressed:
            compressed.write(old.read_bytes())
        old.unlink()
    other.join()
    assert [path.name for path in folder.iterdir()] == [f"{old.name}.gz"]
    assert gzip.decompress(Path(f"{old}.gz").read_bytes()) == b'{"evaluation_id":"e1"}\n'


def _waits_for(path: Path) -> bool:
    """Return whether the file is open twice in this process."""
    opened = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))  # noqa: PTH208
    return list(opened).count(str(path)) > 1


def test_forget_erases_lines_of_archives_and_a_cut_line_spoils_no_other(
    keyspace: Keyspace, sender: Any, tmp_path: Path
) -> None:
    options = {"kind": "file", "path": str(tmp_path)}
    settings = settings_of(keyspace, receivers={"mine": receiver(options)})
    worker = sender(options)
    keyspace.send(*map(verdict, range(3)))
    worker.turn()
    (plain,) = tmp_path.iterdir()
    compressed = tmp_path / "verdicts-2025-11-25.host-1.jsonl.gz"
    compressed.write_bytes(gzip.compress(plain.read_bytes()))
    target = ForgetTarget(trace_id=verdict(1).trace_id)
    for dry_run, erased in ((True, 2), (False, 2), (False, 0)):
        assert Forgetting(keyspace.store, settings, target, dry_run=dry_run).run().archived == erased
    assert [ids_in(path) for path in tmp_path.iterdir()] == [names(3, 1)] * 2
    # The worker goes on with the replaced file, also where a full disk cut a line.
    with plain.open("ab") as file:
        file.write(b'{"evaluation_id":')
    keyspace.send(verdict(3))
    worker.turn()
    assert ids_in(plain) == names(4, 1)
    # Files of a killed process are removed; an archive that cannot be read keeps nothing else from being forgotten.
    left, fresh = tmp_path / ".verdicts-2025-11-25.host-1.jsonl.7.gz", tmp_path / ".verdicts-2025-11-25.host-1.jsonl.8"
    for remove in (Forgetting(keyspace.store, settings, ForgetTarget(trace_id="t")).run, sender(options).turn):
        keyspace.send(verdict(0))
        for path in (left, fresh):
            path.write_bytes(b"{}")
        os.utime(left, (0, 0))
        remove()
        assert (left.exists(), fresh.exists()) == (False, True)
    compressed.write_bytes(gzip.compress(b'{"trace_id":"t"}\n' * 1000)[:-20])
    write_labels(keyspace.store, [Label("t", "safety", "safety", passed=True, drawn="golden")])
    with pytest.raises(OSError, match="damaged"):
        Forgetting(keyspace.store, settings, ForgetTarget(trace_id="t")).run()
    assert keyspace.client.hlen(LookupKeys(keyspace.keys.prefix).labels) == 0


def test_only_texts_are_redacted_and_output_has_a_line_each(
    keyspace: Keyspace, sender: Any, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    redact = Redact(builtin=False, patterns=(r"0{5}", "kind"))
    details = {"sentences": [{"sentence": "A kind one."}]}
    keyspace.send(*(verdict(number, details=details) for number in range(3)))
    sender({"kind": "stdout"}, export_explanations=True, redact=redact).turn()
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [(line["evaluation_id"], line["trace_id"]) for line in lines] == [
        (name, verdict(number).trace_id) for number, name in enumerate(names(3))
    ]
    assert {line["details"]["sentences"][0]["sentence"] for line in lines} == {"A [redacted] one."}
    assert "kind" not in json.dumps([(line["scores"], line["details"]) for line in lines])


def test_a_folder_that_cannot_be_written_is_waited_for(keyspace: Keyspace, sender: Any, tmp_path: Path) -> None:
    blocked = tmp_path / "archive"
    blocked.write_text("a file")
    worker = sender({"kind": "file", "path": str(blocked)})
    worker.meanwhile = lambda: blocked.unlink(missing_ok=True)
    keyspace.send(verdict(0))
    worker.turn()
    assert (worker.waits, worker.dropped, pending(keyspace)) == ([0.5], {}, 0)
    assert isinstance(worker.exporter, FileExporter)
    assert len(list(blocked.iterdir())) == 1


def test_doctor_checks_every_kind_and_an_address_that_ends_in_its_path_is_not_doubled(
    keyspace: Keyspace, tmp_path: Path
) -> None:
    for kind in BACKENDS:
        with kind() as server:
            options = server.settings()

            def settings(end: str = "", options: dict[str, Any] = options) -> Settings:
                mine = receiver({**options, "url": options["url"] + (end if options["kind"] != "webhook" else "")})
                return settings_of(keyspace, models=MODELS, receivers={"mine": mine})

            for end in [f"{path}{slash}" for path in (*KINDS[kind.kind].paths, "") for slash in ("", "/")]:  # type: ignore[attr-defined]
                results = [(finding.result, finding.name) for finding in findings(settings(end))]
                assert results == [("ok", "receiver mine")], (kind.kind, end)
            assert (server.refusals, server.evaluations()) == ([], [])
            server.answers.append(401)
            assert [finding.result for finding in findings(settings())] == ["broken"], kind.kind
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("RECEIVER_KEY")
        for name in KINDS.keys() - {"file", "stdout"}:
            options = {"kind": name, "url": "http://peer:1", "api_key_env": "RECEIVER_KEY"}
            without_key = settings_of(keyspace, receivers={"mine": receiver(options)})
            row = find_exporters(without_key)["receiver:mine"]
            assert "http://peer:1" in (row.retained_data(without_key) or ""), name
            (finding,) = findings(without_key)
            assert (finding.result, "RECEIVER_KEY" in finding.what) == ("broken", True), name
    files = FileSettings(path=str(tmp_path / "none" / "such"))
    assert [finding.result for finding in findings(settings_of(keyspace, receivers={"mine": files}))] == ["ok"]


def test_a_url_with_the_path_of_another_api_is_refused() -> None:
    for kind, url, fault in TABLES["urls"]:
        faults = [str(each) for each in receiver({"kind": kind, "url": url}).faults("")]
        assert faults[:1] == [] if fault is None else faults[0].startswith(fault), (kind, url, faults)
    with pytest.raises(SettingsError, match="otlp_endpoint: ends in /api/public, the path of another API"):
        load({"TRACEJUDGE_OTLP_ENDPOINT": "https://h/api/public"})
    settings = Settings.from_keys(receivers={"mine": receiver({"kind": "webhook", "url": "http://host/hook/"})})
    assert WebhookExporter.destination_of(settings, "mine").url == "http://host/hook/", "it keeps its slash"


def test_certificates_and_secrets_that_cannot_be_used_are_named(keyspace: Keyspace, tmp_path: Path) -> None:
    absent, other = tmp_path / "absent.pem", tmp_path / "other.pem"
    other.write_text("no certificate")
    unusable = "url of [receivers.mine]: {} cannot be used"
    cases: list[tuple[dict[str, Any], str]] = [
        ({key: str(path)}, unusable.format(path)) for key in ("ca_file", "client_cert") for path in (absent, other)
    ]
    empty = "receivers.mine.headers.x-team.env: the variable ABSENT is empty"
    cases.append(({"headers": {"x-team": {"env": "ABSENT"}}}, empty))
    for kind in ("phoenix", "otlp"):
        for options, message in cases:
            mine = receiver({"kind": kind, "url": "http://127.0.0.1:1", **options})
            settings = settings_of(keyspace, receivers={"mine": mine})
            (finding,) = findings(settings)
            assert (finding.result, finding.what.startswith(message)) == ("broken", True), (options, finding)
            if message != empty:
                with pytest.raises(SettingsError, match="cannot be used"):
                    find_exporters(settings)["receiver:mine"].make(settings, keyspace.store, Metrics(settings))


def test_otlp_receivers_place_spans_and_send_events_as_they_are_set(keyspace: Keyspace, sender: Any) -> None:
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    judged = verdict(0, trace_id=trace_id, span_id=span_id, calls=(Call(1_700_000_000.0, 0.1, "ok"),))
    for placement, logs in (("linked", "auto"), ("child", "off"), ("linked", "on")):
        keyspace.next_case(f"{placement} {logs}")
        # Without a path for events they are left out, or waited for where they are wanted.
        refuses = logs == "on"
        with OtlpReceiver(
            lambda export, refuses=refuses: Accept(404 if refuses and "logs" in export.path else 200)
        ) as otlp:
            worker = sender({"kind": "otlp", "url": otlp.root_url, "placement": placement, "logs": logs})
            worker.meanwhile = lambda: setattr(otlp, "behaviour", Accept()) if len(worker.waits) == 3 else None  # noqa: B023
            keyspace.send(judged)
            worker.turn()
            evaluation, call = otlp.spans
            assert call.parent_span_id == evaluation.span_id
            is_child = placement == "child"
            assert (evaluation.trace_id == trace_id, call.trace_id == trace_id) == (is_child, is_child), placement
            assert (evaluation.parent_span_id == span_id, len(evaluation.links)) == (is_child, 0 if is_child else 1)
            assert (len(worker.waits), len(otlp.logs), worker.dropped) == (3 * refuses, logs != "off", {}), logs


def test_phoenix_may_name_sessions_within_each_other_and_parking_has_a_bound(keyspace: Keyspace, sender: Any) -> None:
    ids, details = ["1", 'the "12th"', "12"], {"session": {"trace_ids": []}}
    parked = DeliveryKeys(keyspace.keys.prefix).receiver_parked("mine")
    with backends.Phoenix() as server:
        server.absent = set(ids[1:])
        worker = sender(server.settings())
        keyspace.send(*(verdict(number, session_id=name, details=details) for number, name in enumerate(ids)))
        worker.turn()
        assert (server.evaluations(), worker.waits, worker.dropped) == (names(1), [], {})
        assert keyspace.client.hlen(parked[0]) == 2
        keyspace.client.delete(*parked)
        server.absent = {f"{number + 1:016x}" for number in range(5)}
        worker = sender(server.settings(), max_outbox=3)
        keyspace.send(*map(verdict, range(5)))
        worker.turn()
        assert keyspace.client.hlen(parked[0]) == 3
        assert (worker.dropped, pending(keyspace)) == ({"not_ingested": 2}, 0)


def test_parked_verdicts_that_are_forgotten_stay_away(keyspace: Keyspace, sender: Any) -> None:
    """Those of a receiver that the settings name no more, and one that is under delivery meanwhile."""
    with backends.Phoenix() as server:
        server.absent = {f"{number + 1:016x}" for number in range(2)}
        worker = sender(server.settings())
        keyspace.send(*map(verdict, range(2)))
        worker.turn()
        parked, due = DeliveryKeys(keyspace.keys.prefix).receiver_parked("mine")
        keyspace.client.zadd(due, {names(2)[1]: 0})
        target = ForgetTarget(trace_id=verdict(1).trace_id)

        def forgotten(_request: web.Request) -> web.Response:
            assert Forgetting(keyspace.store, settings_of(keyspace), target).run().verdicts == 2
            return web.Response(status=404, text=f"Spans with IDs {2:016x} do not exist.")

        server.answers.append(forgotten)
        worker.turn()
        assert [name.decode() for name in keyspace.client.hkeys(parked)] == names(1)
        assert keyspace.client.zcard(due) == 1


@pytest.mark.usefixtures("_patient_doctor")
def test_verdicts_that_are_parked_for_a_receiver(run: Run) -> None:
    Path("tracejudge.toml").write_text('[receivers.phoenix]\nkind = "phoenix"\nurl = "http://127.0.0.1:1"\n')
    with tuned() as server:
        be_present(server.url)
        assert "parked for phoenix" not in examined(run, url=server.url)[1]
        store = at(server.url)
        entries, due = DeliveryKeys(store.keys.prefix).receiver_parked("phoenix")
        store.call(lambda client: (client.hset(entries, "1-0", b"x"), client.zadd(due, {"1-0": 1})))
        store.close()
        part = examined(run, url=server.url)[1]["parked for phoenix"]
    assert part[:2] == ("warning", "1 verdict parked: it does not know their traces or spans yet")
