"""Real workers on a real Redis, and helpers to read their state."""

import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec

import tracejudge
from support.processes import Program, free_port, wait_until
from support.scrape import Scrape, scrape
from worker.base.accounting import Account, read_account, sum_accounts
from worker.core.queue.ledger import OutboxEntry, read_outbox_entry
from worker.core.storage.client import make_stores

__all__ = ["SETTLING_S", "Pipeline", "SteadyLoad", "Worker", "make_traces", "model_at"]

SETTLING_S = 240.0
"""Longest wait: thousands of traces take a minute on a busy machine. A wait ends with its condition."""


class Worker:
    """A worker process and its metrics page."""

    def __init__(self, program: Program, port: int) -> None:
        self.program, self.port = program, port

    def is_up(self) -> bool:
        assert self.program.running, self.program.output
        try:
            return bool(self.scrape().text)
        except httpx.TransportError:
            return False

    def scrape(self) -> Scrape:
        return scrape(self.port)

    def counted(self, expected: int, name: str = "tracejudge_verdicts_total", **labels: str) -> Scrape:
        """Wait until a counter's total over these labels is reached: metrics lag behind the accounting."""
        wait_until(
            lambda: self.scrape().total(name, **labels) >= expected, SETTLING_S, f"{name} {labels} to reach {expected}"
        )
        return self.scrape()


class Pipeline:
    """One prefix on one Redis or cluster, with the workers that a test starts on it.

    Attributes:
        store: The first partition, the only one without a cluster.
    """

    def __init__(
        self,
        redis_url: str,
        prefix: str,
        folder: Path,
        stack: ExitStack,
        *,
        partitions: int | None = None,
        broker_url: str | None = None,
    ) -> None:
        self.redis_url, self.prefix = redis_url, prefix
        self.stores = make_stores(redis_url, prefix, partitions or 1)
        self.store = self.stores[0]
        self.keys = self.store.keys
        self._settings = {"partitions": partitions, "broker_url": broker_url}
        self._folder, self._stack = folder, stack
        for store in self.stores:
            stack.callback(store.close)

    def worker(self, *arguments: str, wait: bool = True, stderr: int | None = None, **settings: Any) -> Worker:
        """Start a worker; keyword arguments are settings, tables as Python values."""
        port = free_port()
        variables = self._variables({"metrics_port": port, **settings})
        folder = self._folder / f"worker-{port}"
        folder.mkdir()
        command = arguments or ("-m", "worker.cli", "worker")
        program = self._stack.enter_context(Program(*command, folder=folder, env=variables, stderr=stderr))
        worker = Worker(program, port)
        if wait:
            wait_until(worker.is_up, what="the worker to start")
        return worker

    def program(self, *arguments: str, **settings: Any) -> Program:
        """Start a command of tracejudge as users do."""
        command = ("-m", "worker.cli", *arguments)
        return self._stack.enter_context(Program(*command, folder=self._folder, env=self._variables(settings)))

    def command(self, *arguments: str, code: int = 0, **settings: Any) -> Any:
        """Run a command of tracejudge to its end; return its document."""
        program = self.program(*arguments, "--json", **settings)
        assert program.wait() == code, program.output
        return json.loads(program.stdout)

    def _variables(self, settings: Mapping[str, Any]) -> dict[str, str]:
        own = {"redis_url": self.redis_url, "prefix": self.prefix}
        all_settings = {**own, **self._settings, **settings}
        return {f"TRACEJUDGE_{name.upper()}": _text(value) for name, value in all_settings.items() if value is not None}

    def publish(self, traces: Sequence[tracejudge.Trace]) -> None:
        """Publish through the SDK and wait until Redis has all of it."""
        with sdk(self.redis_url, self.prefix):
            for trace in traces:
                tracejudge.publish(trace)

    def add(self, **fields: bytes | str) -> None:
        """Write a raw entry into the stream of the first partition, as another language would."""
        self.store.call(lambda client: client.xadd(self.keys.traces, fields))

    def account(self) -> Account:
        return sum_accounts([read_account(store) for store in self.stores])

    @contextmanager
    def lost_meanwhile(self) -> Iterator[list[int]]:
        """Read again and again how many evaluations count as lost, until the block is left."""
        stop, lost = threading.Event(), [self.account().lost]

        def watch() -> None:
            while not stop.wait(0.05):
                lost.append(self.account().lost)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield lost
        finally:
            stop.set()
            watcher.join()

    def counter(self, name: str) -> int:
        """Read one counter of the accounting; reading the whole account takes longer."""
        return sum(int(store.call(methodcaller("hget", store.keys.account_all, name)) or 0) for store in self.stores)

    def settled(self, published: int, timeout_s: float = SETTLING_S) -> Account:
        """Wait until everything published is accounted for, and return the accounting."""

        def look() -> Account | None:
            account = self.account()
            return account if account.published >= published and account.settled else None

        return wait_until(look, timeout_s, f"{published} traces to be settled")

    def outbox(self) -> list[OutboxEntry]:
        entries = [entry for store in self.stores for entry in store.call(methodcaller("xrange", store.keys.verdicts))]
        return [read for read in map(read_outbox_entry, entries) if read is not None]

    def ledger_size(self) -> int:
        return sum(state != b"0" for state in self.ledger().values())

    def ledger(self) -> dict[str, bytes]:
        """Read the ledger: evaluation id and its state, `0` for chosen."""

        def read(client: Any, pattern: str) -> list[dict[bytes, bytes]]:
            return [client.hgetall(key) for key in set(client.scan_iter(pattern, count=5000))]

        parts = [
            part for store in self.stores for part in store.call(partial(read, pattern=f"{store.keys.evaluations}:*"))
        ]
        return {field.hex(): state for part in parts for field, state in part.items()}


@contextmanager
def sdk(redis_url: str, prefix: str, *, max_items: int = 50_000, **options: int) -> Iterator[None]:
    """Be a service that publishes; leaving the block waits until Redis has everything. A process has one SDK client."""
    tracejudge.init(
        service="tests", redis_url=redis_url, prefix=prefix, max_items=max_items, max_bytes=1 << 29, **options
    )
    try:
        yield
        assert tracejudge.flush(60), "the SDK could not publish the rest"
    finally:
        tracejudge.shutdown()


class SteadyLoad:
    """Publishes traces at a steady rate through the SDK, in a thread, until the block ends.

    Attributes:
        published: How many traces this load has published so far.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        rate: float,
        *,
        first: int = 0,
        total: int | None = None,
        words: int = 20,
        redis_url: str | None = None,
    ) -> None:
        """Prepare `rate` traces a second, numbered from `first`; each ended when it is published.

        With ``total`` the end of the block waits until that many are published.
        """
        self.published = 0
        self._rate, self._first, self._total, self._words = rate, first, total, words
        self._sdk = sdk(redis_url or pipeline.redis_url, pipeline.prefix)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="steady load", daemon=True)

    def __enter__(self) -> Self:
        self._sdk.__enter__()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._total is None or kind is not None:
            self._stop.set()
        self._thread.join()
        self._sdk.__exit__(kind, *error)

    def _publish(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(0.02) and self.published != self._total:
            due = min(int((time.monotonic() - began) * self._rate), self._total or sys.maxsize)
            numbers = {"count": due - self.published, "first": self._first + self.published}
            for trace in make_traces(**numbers, words=self._words, ended_at=time.time()):
                tracejudge.publish(trace)
            self.published = due


def make_traces(count: int, *, first: int = 0, words: int = 20, **fields: Any) -> list[tracejudge.Trace]:
    """Make traces numbered from `first`; their ids depend on the number only, and are the same in every run."""
    filler = " ".join(f"word{number}" for number in range(words))
    made = []
    for number in range(first, first + count):
        digest = hashlib.blake2b(f"trace {number}".encode(), digest_size=16).hexdigest()
        text = f"Parcel {number} holds {filler}."
        basis = {"service": "bot", "environment": "prod", "input": f"What is in parcel {number}?", "output": text}
        ids = {"trace_id": digest, "span_id": digest[:16], "id": digest[16:]}
        made.append(tracejudge.Trace(**{**ids, **basis, "context": [text], **fields}))
    return made


def model_at(base_url: str, **fields: Any) -> dict[str, Any]:
    """Return the table of a judge model at an endpoint."""
    return {"provider": "openai", "base_url": base_url, "model": "judge-1", **fields}


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
