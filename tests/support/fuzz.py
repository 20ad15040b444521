"""Invalid entries of the stream: random ones, and mutations of valid ones; the same for each seed.

Every text in them holds `MARK`, so that a test can look for it where no text of a trace may be.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

__all__ = ["MARK", "entries"]

Fields = dict[bytes, bytes]
MARK: Final = "PLANTED"
HUGE_BYTES: Final = 5 * 1024 * 1024  # past `max_trace_bytes`
DEEP: Final = 50_000
ODD_TEXTS: Final = ("", "\x00", "\ud800", "\u202e", "\U0001d518" * 50, "\r\n", " ", "a" * 5_000, "-1", "../..", "%s%n")
ODD_NUMBERS: Final = (0, -1, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.1, 1e308, -0.0)
ODD_VERSIONS: Final = (b"", b"0", b"2", b"1.0", b" 1", b"one", b"\xff", b"1" * 1000)


def entries(count: int, *, seed: int = 6) -> Iterator[Fields]:
    """Make `count` entries; about a third are of known kinds, and some of them are readable."""
    chance = random.Random(seed)
    for number in range(count):
        yield chance.choice(MAKERS)(chance, number)


def _trace(number: int) -> dict[str, Any]:
    text = f"{MARK} parcel {number}"
    return {
        "trace_id": f"{number:032x}",
        "span_id": f"{number:016x}",
        "service": "poison",
        "input": text,
        "output": text,
        "context": [{"text": text, "id": "1", "score": 0.5}],
        "messages": [{"role": "user", "content": text}],
        "tool_calls": [{"name": "look", "arguments": text, "result": text}],
        "spans": [{"span_id": "a", "name": "step", "inputs": text, "outputs": text, "attributes": {"k": text}}],
        "usage": {"input_tokens": 1, "output_tokens": 2},
        "feedback": {"score": -1, "comment": text},
        "tags": {"team": text},
        "started_at": 1.5,
        "ended_at": 2.5,
    }


def _feedback(number: int) -> dict[str, Any]:
    return {"trace_id": f"{number:032x}", "score": -1, "comment": f"{MARK} comment"}


def _report(number: int) -> dict[str, Any]:
    """Make a consistent report: three traces were published, and dropped."""
    totals = {"published": 3, "accepted": 0, "dropped": {"buffer_full": 3}}
    return {"producer": f"poison-{number}", "seq": 1, "service": "poison", **totals}


def _valid(_: random.Random, number: int) -> Fields:
    return _entry(b"t", _trace(number))


def _odd_value(chance: random.Random, number: int) -> Fields:
    """Replace a value in a trace or feedback by one of another type."""
    kind, body = chance.choice(((b"t", _trace(number)), (b"f", _feedback(number))))
    place = chance.choice(list(_places(body)))
    place(_value(chance))
    return _entry(kind, body)


def _broken_report(chance: random.Random, number: int) -> Fields:
    """Make an invalid report. A valid one with other counts would be accepted, because reports are not verified."""
    body = _report(number)
    place = chance.choice(("producer", "seq", "published", "accepted", "dropped"))
    odd = chance.choice(
        (None, [], "3", -1, 10**13, 0.5, True, {"buffer_full": -3}, {f"{MARK} {n}": 1 for n in range(50)})
    )
    if place == "producer":
        odd = chance.choice(("", "p" * 100, None, 7))
    elif place == "dropped" and isinstance(odd, int | float):
        odd = [odd]
    body[place] = odd
    return _entry(b"r", body)


def _flipped(chance: random.Random, number: int) -> Fields:
    """Change some bytes of the JSON."""
    kind, body = chance.choice(((b"t", _trace(number)), (b"f", _feedback(number))))
    raw = bytearray(json.dumps(body).encode())
    for _ in range(chance.randint(1, 8)):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    return {b"v": b"1", kind: bytes(raw)}


def _cut(chance: random.Random, number: int) -> Fields:
    kind, body = chance.choice(((b"t", _trace(number)), (b"f", _feedback(number)), (b"r", _report(number))))
    raw = json.dumps(body).encode()
    return {b"v": b"1", kind: raw[: chance.randrange(len(raw))]}


def _no_utf8(chance: random.Random, number: int) -> Fields:
    raw = (
        json.dumps(_trace(number))
        .encode()
        .replace(MARK.encode(), chance.choice((b"\xff\xfe", b"\xc3", b"\xed\xa0\x80")))
    )
    return {b"v": b"1", b"t": raw}


def _deep(chance: random.Random, number: int) -> Fields:
    opening, closing = chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
    levels = chance.choice((50, 500, 900, 1_000, DEEP))
    raw = json.dumps(_trace(number)).encode()[:-1]
    name = chance.choice((b"unknown", b"context", b"tags", b"spans"))
    return {b"v": b"1", b"t": raw + b',"' + name + b'":' + opening * levels + b"1" + closing * levels + b"}"}


def _random_bytes(chance: random.Random, _: int) -> Fields:
    return {b"v": b"1", chance.choice((b"t", b"f", b"r")): chance.randbytes(chance.randrange(2_000))}


def _other_version(chance: random.Random, number: int) -> Fields:
    return _entry(b"t", _trace(number)) | {b"v": chance.choice(ODD_VERSIONS)}


def _other_fields(chance: random.Random, _: int) -> Fields:
    names = (b"v", b"x", b"T", b"", b"\xff", b"payload", b"p", b"tt", b"j")
    return {chance.choice(names): chance.randbytes(20) for _ in range(chance.randint(1, 5))}


def _several_kinds(chance: random.Random, number: int) -> Fields:
    return _entry(b"t", _trace(number)) | _entry(b"f", _feedback(number)) | {b"p": chance.randbytes(80)}


def _large(chance: random.Random, number: int) -> Fields:
    """Make a large entry; a few exceed the size limit."""
    size = HUGE_BYTES if chance.random() < 0.02 else chance.randrange(1_000, 60_000)
    return _entry(b"t", _trace(number) | {"output": MARK * (size // len(MARK))})


def _odd_ids(chance: random.Random, number: int) -> Fields:
    odd = {name: chance.choice(ODD_TEXTS) for name in ("trace_id", "span_id", "id", "session_id", "response_id")}
    return _entry(b"t", _trace(number) | odd | {"service": chance.choice((*ODD_TEXTS, "poison"))})


MAKERS: Final[tuple[Callable[[random.Random, int], Fields], ...]] = (
    _valid,
    _odd_value,
    _odd_value,
    _broken_report,
    _flipped,
    _flipped,
    _cut,
    _no_utf8,
    _deep,
    _random_bytes,
    _other_version,
    _other_fields,
    _several_kinds,
    _large,
    _odd_ids,
)


def _entry(kind: bytes, body: Mapping[str, Any]) -> Fields:
    return {b"v": b"1", kind: json.dumps(body).encode()}


def _value(chance: random.Random) -> object:
    odd = (None, True, [], {}, [[]], [None], {"": None}, float("nan"), float("inf"), *ODD_TEXTS, *ODD_NUMBERS)
    return chance.choice(odd)


def _places(body: Any) -> Iterator[Callable[[object], None]]:
    """Yield a setter for every place in a body."""
    if not isinstance(body, dict | list):
        return
    for key in list(body) if isinstance(body, dict) else range(len(body)):
        yield lambda value, key=key: body.__setitem__(key, value)
        yield from _places(body[key])
