"""Hostile and many clients: what is refused, how much memory it takes, and that others are served meanwhile."""

import contextlib
import random
import resource
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from gateway_parts import GZIP_PROTOBUF, GatewayProcess, Start, Stored, gzipped, span_request
from support.processes import bounded_s, cpu_s, wait_until
from support.tables import read_table

TOKEN = "0123456789abcdef-own"  # noqa: S105 - of this test
JSON = {"Content-Type": "application/json"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}
GZIP = {"Content-Encoding": "gzip"}
MIB = 2**20
SPANS, OF_A_TRACE = 500, 5


def post_500(gateway: GatewayProcess, chance: random.Random) -> None:
    spans = []
    for _ in range(SPANS // OF_A_TRACE):
        trace_id, root = chance.randbytes(16), chance.randbytes(8)
        spans += [(trace_id, root, b""), *((trace_id, chance.randbytes(8), root) for _ in range(OF_A_TRACE - 1))]
    gateway.http.post("/v1/traces", content=span_request(spans), headers=GZIP_PROTOBUF).raise_for_status()


def field(number: int, content: bytes) -> bytes:
    """Encode one field of protobuf that has a length."""
    head, size = bytearray([number << 3 | 2]), len(content)
    while size >= 128:
        size, digit = divmod(size, 128)
        head.append(digit + 128)
    return bytes(head) + bytes([size]) + content


def port_of(gateway: GatewayProcess) -> int:
    return int(gateway.url.rsplit(":", 1)[1])


@contextlib.contextmanager
def many(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Open connections, from several addresses of the loopback: each address has ports of its own."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < count + 500:
        pytest.skip("this machine allows fewer open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], count + 500), before[1]))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        made = []
        for number in range(count):
            source = (f"127.0.0.{2 + number // 4_000}", 0)
            made.append(socket.create_connection(("127.0.0.1", port), timeout=30, source_address=source))
            stack.callback(made[-1].close)
        yield made


def send_all(gateway: GatewayProcess, path: str, content: bytes, headers: dict[str, str], times: int) -> list[int]:
    """Send the same request several times at once, and return the statuses."""
    with ThreadPoolExecutor(times) as pool, httpx.Client(base_url=gateway.url, timeout=60) as client:
        posts = [pool.submit(client.post, path, content=content, headers=headers) for _ in range(times)]
        return [post.result().status_code for post in posts]


@pytest.mark.slow("a gigabyte is decompressed")
def test_bodies_that_decompress_into_a_gigabyte_are_refused_in_bounded_memory(start: Start, stored: Stored) -> None:
    gateway = start()
    # A gzip file of several members; a single one takes four seconds to make.
    bomb = gzipped(bytes(64 * MIB)) * 16
    for path, headers in (("/v1/tracejudge", JSON), ("/v1/traces", PROTOBUF)):
        assert send_all(gateway, path, bomb, headers | GZIP, 8) == [413] * 8, path
    # Just within the bound: only some at once, and no content that can be read.
    allowed = send_all(gateway, "/v1/traces", gzipped(bytes(20 * MIB)), PROTOBUF | GZIP, 8)
    assert set(allowed) <= {400, 429}
    assert gateway.total("rejected_total", reason="too_large") == 16
    assert gateway.peak_mib() < 300
    assert gateway.publish({"service": "bot", "output": "yes"}).status_code == 200
    assert len(stored.entries()) == 1


def test_wrong_tokens_and_content_types_are_refused_before_the_body(start: Start, stored: Stored) -> None:
    gateway = start(tokens={"own": {"token_env": "PYTEST_OWN"}}, env={"PYTEST_OWN": TOKEN})
    statuses = {"unauthorized": 401, "content_type": 415, "encoding": 415, "too_large": 413}
    for path in ("/v1/traces", "/v1/tracejudge"):
        for reason, headers in read_table(__file__, "refused_heads"):
            head = "".join(f"{line.replace('TOKEN', TOKEN)}\r\n" for line in headers)
            head = head.replace("LONG", "x" * 8_000).replace("PART", TOKEN[:-1])
            length = "" if "Content-Length" in head else "Content-Length: 10000000\r\n"
            with socket.create_connection(("127.0.0.1", port_of(gateway)), timeout=30) as client:
                # No byte of the body is sent.
                client.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\n{head}{length}\r\n".encode())
                reply = client.recv(4_000)
            assert reply.startswith(f"HTTP/1.1 {statuses[reason]} ".encode()), (path, headers, reply)
            assert (b"www-authenticate: Bearer" in reply) == (reason == "unauthorized"), (path, headers)
    counts = {reason: gateway.total("rejected_total", reason=reason) for reason in statuses}
    assert counts == {"unauthorized": 12, "content_type": 6, "encoding": 4, "too_large": 2}
    assert gateway.publish({"service": "bot", "output": "yes"}, Authorization=f"Bearer {TOKEN}").status_code == 200
    assert len(stored.entries()) == 1
    assert TOKEN[:-1] not in gateway.program.output


def test_a_body_without_end_is_refused_at_the_bound(start: Start) -> None:
    gateway = start(max_body_bytes=1_000_000)
    for path in ("/v1/traces", "/v1/tracejudge"):
        with socket.create_connection(("127.0.0.1", port_of(gateway)), timeout=30) as client:
            client.sendall(
                f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                "Transfer-Encoding: chunked\r\n\r\n".encode()
            )
            sent = 0
            # The gateway closes the connection: the rest is not read.
            with contextlib.suppress(ConnectionError):
                while sent < 100_000_000:
                    client.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
                    sent += 0x10000
            assert sent < 50_000_000, path
    wait_until(lambda: gateway.total("rejected_total", reason="too_large") == 2, what="the refusals")
    wait_until(lambda: gateway.total("connections") <= 1, what="the connections to end")


SLOW_CLIENTS = (
    (
        b"POST /v1/tracejudge HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n",
        b" ",
    ),
    (
        b"POST /v1/traces HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"1\r\n \r\n",
    ),
    (b"POST /v1/logs HTTP/1.1\r\nHost: ", b"a"),
    (b"", b"P"),
)
"""How a request begins, and what is sent of it each second."""


def drip(clients: Sequence[socket.socket], ending: threading.Event) -> None:
    open_clients = {client: SLOW_CLIENTS[number % 4][1] for number, client in enumerate(clients)}
    while not ending.wait(1.0):
        for client, content in list(open_clients.items()):
            try:
                client.sendall(content)
            except OSError:
                del open_clients[client]


@pytest.mark.slow("slow bodies are read for ten or thirty seconds")
@pytest.mark.parametrize(
    ("count", "left"),
    [
        (100, 51),
        (100, 1),
        pytest.param(1_000, 1, marks=pytest.mark.endurance("many clients")),
    ],
)
def test_slow_clients_do_not_delay_others_and_are_ended(start: Start, count: int, left: int) -> None:
    """Heads have ten seconds and bodies thirty; in short only the heads are waited for."""
    gateway, chance = start(), random.Random(3)
    ending, delays = threading.Event(), list[float]()
    with many(port_of(gateway), count) as clients, ThreadPoolExecutor(1) as pool:
        for number, client in enumerate(clients):
            client.sendall(SLOW_CLIENTS[number % 4][0])
        pool.submit(drip, clients, ending)
        began = time.monotonic()
        while len(delays) < 5 or (gateway.total("connections") > left and time.monotonic() - began < 60):
            sent = time.monotonic()
            post_500(gateway, chance)
            delays.append(time.monotonic() - sent)
            threading.Event().wait(0.2 if len(delays) < 5 else 1.0)
        ending.set()
        assert max(delays) < 5, delays
        assert gateway.peak_mib() < 300
        assert gateway.total("connections") <= left
        assert left > 1 or gateway.total("rejected_total", reason="slow") == count / 2


def test_many_connections_are_bounded_and_an_open_one_is_served(start: Start, stored: Stored) -> None:
    """Those over the bound are refused one by one, and all are refused no longer once the others have ended."""
    gateway, chance = start(max_connections=500, gather_s=0.3), random.Random(4)
    gateway.publish({"service": "bot", "output": "yes"}).raise_for_status()
    with many(port_of(gateway), 499):
        wait_until(lambda: gateway.total("connections") == 500, what="the connections")
        for number in range(50):
            # The server closes without reading the request: the answer arrives whole even where a reset follows it.
            with httpx.Client(base_url=gateway.url) as further:
                reply = further.post("/v1/tracejudge", json={"service": "bot", "output": "yes"})
                assert (reply.status_code, reply.headers["Retry-After"]) == (503, "5"), number
        for _ in range(3):
            post_500(gateway, chance)
        count = 1 + 3 * SPANS // OF_A_TRACE
        wait_until(lambda: stored.redis.xlen(f"{stored.prefix}:traces") == count, what=f"{count} traces")
        assert gateway.total("connections") == 500
    wait_until(lambda: gateway.total("connections") <= 1, what="the connections to end")
    with httpx.Client(base_url=gateway.url) as again:
        assert again.post("/v1/tracejudge", json={"service": "bot", "output": "yes"}).status_code == 200


@pytest.mark.endurance("opens ten thousand connections")
@pytest.mark.timeout(300)
def test_ten_thousand_connections_take_bounded_memory(start: Start) -> None:
    gateway, chance = start(), random.Random(5)
    # Opened first, so that it is within the bound of 4,000.
    gateway.publish({"service": "bot", "output": "yes"}).raise_for_status()
    with many(port_of(gateway), 10_000):
        wait_until(lambda: gateway.total("connections") == 4_000, what="the bound")
        post_500(gateway, chance)
    wait_until(lambda: gateway.total("connections") <= 1, what="the connections to end")
    assert gateway.peak_mib() < 300


def hostile_bodies() -> Iterator[tuple[str, str, dict[str, str], bytes, set[int]]]:
    """Bodies within all bounds of size whose names or members cost much more than their bytes."""
    names = ",".join(f'"unknown{number}":1' for number in range(400_000))
    start, call = '{"service":"bot","output":"yes"', "a" * 16
    objects = ",".join([start + "".join(f',"unk{number}":1' for number in range(20)) + "}"] * 5_000)
    service = field(1, field(1, field(1, b"service.name") + field(2, field(1, b"bot"))))
    for name, body in (
        ("names of a trace", f"{start},{names}}}"),
        ("names of tags", f'{start},"tags":{{{names}}}}}'),
        ("names of a span", f'{start},"spans":[{{{names}}}]}}'),
        ("names of feedback", f'{{"trace_id":"a1","score":1,{names}}}'),
        ("names within the input", f'{{"service":"bot","input":{{"input":"a","output":"b",{names}}}}}'),
        ("names of many traces", f"[{objects}]"),
    ):
        yield name, "/v1/tracejudge", JSON, body.encode(), {200}
    rejected = ",".join(['{"service":"bot","model":"m"}'] * 20_000)
    yield "rejected objects", "/v1/tracejudge", JSON, f"[{rejected}]".encode(), {400}
    attributes = ",".join([f'{{"key":"{call}","value":{{"intValue":1}}}}'] * 200_000)
    resource = f'{{"resourceSpans":[{{"resource":{{"attributes":[{attributes}]}},"scopeSpans":[{{"spans":[{{}}]}}]}}]}}'
    yield "OTLP resource in JSON", "/v1/traces", JSON, resource.encode(), {200}
    span = field(2, b"".join(field(9, field(1, f"key{number}".encode())) for number in range(200_000)))
    yield "OTLP span", "/v1/traces", PROTOBUF, field(1, service + field(2, span)), {200, 413}
    yield "empty members", "/v1/traces", PROTOBUF | GZIP, gzipped(b"") * 250_000, {413}
    yield "empty blocks", "/v1/tracejudge", JSON | GZIP, gzipped(b"")[:10] + b"\0\0\0\xff\xff" * 200_000, {413}
    # Millions of empty items.
    source = b'{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"a"}}]},'
    empty = b",".join([b"{}"] * 2_000_000)
    for name, path, headers, content in (
        ("spans", "/v1/traces", PROTOBUF, field(1, field(2, b"\x12\x00" * 3_000_000))),
        ("resources", "/v1/logs", PROTOBUF, b"\x0a\x00" * 3_000_000),
        ("span attributes", "/v1/traces", PROTOBUF, field(1, service + field(2, field(2, b"\x4a\x00" * 3_000_000)))),
        ("JSON spans", "/v1/traces", JSON, b'{"resourceSpans":[%b"scopeSpans":[{"spans":[%b]}]}]}' % (source, empty)),
        ("list", "/v1/tracejudge", JSON, b"[%b]" % empty),
        ("lines", "/v1/tracejudge", {"Content-Type": "application/x-ndjson"}, b"0\n" * 3_000_000),
    ):
        yield name, path, headers | GZIP, gzipped(content), {413}


@pytest.mark.slow("clients that take seconds")
@pytest.mark.parametrize("is_short", [True, pytest.param(False, marks=pytest.mark.endurance("nine more bodies"))])
def test_work_for_one_client_is_bounded_and_delays_no_other_and_no_stop(*, start: Start, is_short: bool) -> None:
    """Each body costs its sender what it costs; others get their answers meanwhile, and SIGTERM ends the process."""
    gateway = start()
    # One of each kind: names that are read one by one, OTLP, members and blocks that hold nothing, and empty items.
    short = {"names of a trace", "OTLP span", "empty members", "empty blocks", "spans", "JSON spans", "list", "lines"}
    with httpx.Client(base_url=gateway.url, timeout=60) as hostile, ThreadPoolExecutor(1) as pool:
        for name, path, headers, content, expected in hostile_bodies():
            if name == "names of a trace":
                stopping = content
            if (name in short) is not is_short:
                continue
            began, delays = time.monotonic(), list[float]()
            # In chunks, so that no length is declared; only the compressed bytes tell that there is no end.
            blocks = iter([content, *[content[10:]] * 25]) if name == "empty blocks" else content
            sending = pool.submit(hostile.post, path, content=blocks, headers=headers)
            while not sending.done() or not delays:
                # In CPU time of the gateway: other work of the machine delays answers too. What waits without work is
                # bounded by the whole time below.
                sent = cpu_s(gateway.program.pid)
                assert gateway.publish({"service": "bot", "output": "yes"}).status_code == 200, name
                delays.append(cpu_s(gateway.program.pid) - sent)
                # Else this client takes half of the time of the processors.
                threading.Event().wait(0.05)
            assert sending.result().status_code in expected, (name, sending.result().text[:200])
            assert time.monotonic() - began < bounded_s(5), name
            assert max(delays) < bounded_s(1), (name, max(delays))
    assert gateway.peak_mib() < 300
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port_of(gateway))))
            client.sendall(b"POST /v1/tracejudge HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
            client.sendall(b"Content-Length: %d\r\n\r\n" % len(stopping) + stopping)
        began = time.monotonic()
        assert gateway.program.terminate() == 0
        assert time.monotonic() - began < bounded_s(10)
