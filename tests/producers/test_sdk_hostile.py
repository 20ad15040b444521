"""Objects whose methods raise, wait or grow cost a count and never raise in the host; what is not theirs passes."""

import asyncio
import contextlib
import enum
import itertools
import signal
import threading
import time
import tracemalloc
import types
import uuid
from collections import UserDict, UserList, UserString, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn
from unittest.mock import AsyncMock, MagicMock

import pytest
from lookalikes import table
from sdk_rig import StartedSdk
from support.processes import slowness

import tracejudge
from tracejudge import api
from tracejudge.content.convert import _NAME_FIELDS
from tracejudge.content.encode import without_traceback
from tracejudge.content.field_names import field_of
from tracejudge.delivery.buffer import Kind
from tracejudge.model import Trace

WAIT_S = 0.3
_GROWN: list[bytes] = []
METHODS = tuple(table("hostile_names"))


# --- values that harm whoever runs one of their methods --------------------------------------------------------------


class OwnExit(BaseException):
    """What a host may derive from BaseException."""


ERRORS: tuple[BaseException, ...] = (
    *(ValueError("SECRET"), SystemExit(3), SystemExit([]), OwnExit("SECRET"), GeneratorExit()),
    *(asyncio.CancelledError(), RecursionError()),
)


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


def _wait(*_: Any, **__: Any) -> Any:
    time.sleep(WAIT_S)


def _grow(*_: Any, **__: Any) -> Any:
    _GROWN.append(b"x" * 4_000_000)


def _spin(*_: Any, **__: Any) -> Any:
    end = time.thread_time() + 1.5  # above the limit of a conversion; not passed while others hold the interpreter
    while time.thread_time() < end:
        pass


def _build(base: type, act: Callable[..., Any], *arguments: Any, full: bool = False) -> Any:
    """Make a value of a class with a base whose every method acts; `full` covers its attributes as well."""
    methods: dict[str, Any] = {name: act for name in METHODS if base is object or hasattr(base, name)}
    if full:
        methods |= {"__getattribute__": act, "__class__": property(act), "__dict__": property(act)}
    if base is not object:
        methods.pop("__hash__", None)
    return type("Hostile", (base,), methods)(*arguments)


def hostile(act: Callable[..., Any]) -> dict[str, Any]:
    """Make values of each kind that act when anything is asked of them."""
    kinds = ((str, "text"), (list, ["a"]), (dict, {"a": "b"}), (int, 7), (float, 0.5), (tuple, "ab"), (Exception, "a"))
    return {
        "an object": _build(object, act),
        "a whole object": _build(object, act, full=True),
        "a class": _meta(act),
        "a list of one": ["a", _build(object, act)],
        "a dict of one": {"a": _build(object, act)},
        **{f"a {base.__name__}": _build(base, act, argument) for base, argument in kinds},
    }


def _meta(act: Callable[..., Any]) -> Any:
    methods: dict[str, Any] = {name: property(act) for name in ("__name__", "__module__", "__mro__", "__dict__")}
    methods |= dict.fromkeys(("__getattribute__", "__eq__", "__hash__", "__instancecheck__", "__subclasscheck__"), act)
    return type("Meta", (type,), methods)("Nameless", (), {})()


class Endless(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        return Endless()

    def __iter__(self) -> Iterator[str]:
        return map(str, itertools.count())

    def __len__(self) -> int:
        return 10**9


class EndlessList(Sequence[Any]):
    def __getitem__(self, place: Any) -> Any:
        return EndlessList()

    def __len__(self) -> int:
        return 10**9


class Everything:
    """Answers every attribute by another such object."""

    def __getattr__(self, name: str) -> Any:
        return Everything()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return Everything()

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield Everything()

    def __getitem__(self, key: Any) -> Any:
        return Everything()


@dataclass
class Record:
    text: Any
    owner: Any = None

    @property
    def content(self) -> Any:
        return _wait()


class Meaning(enum.Enum):
    BAD = "bad"

    __str__ = _wait


def _waiting() -> Iterator[Any]:
    time.sleep(WAIT_S)
    yield "a"


MANY = 300_000  # a pass over so many takes five times what a call may cost


def large_values() -> dict[str, Any]:
    """Make values that take half a second of CPU to make; no call changes them."""
    return {
        "a large text": "x" * 100_000_000,
        "a large wide text": "\u4e2d" * 10_000_000,
        "large bytes": b"x" * 100_000_000,
        "large changeable bytes": bytearray(50_000_000),
        "a view of bytes": memoryview(bytearray(50_000_000)),
        "many texts": ["a"] * MANY,
        "many texts as a tuple": ("a",) * MANY,
        "many lists": [["a"]] * MANY,
        "many dicts": [{"role": "user", "content": "a"}] * MANY,
        "many names": dict.fromkeys(map(str, range(MANY)), "a"),
        "many numbers": set(range(MANY)),
        "a long queue": deque(["a"], MANY) * MANY,
        "a large number": 1 << 5_000_000,
        "a range": range(10**12),
        "keys": dict.fromkeys(range(MANY)).keys(),
    }


def hostile_values() -> dict[str, Any]:
    """Make the other values anew, by name: a call may consume or change them."""
    circle: list[Any] = []
    circle.append(circle)
    results: dict[str, Any] = {}
    results["documents"] = results
    deep_list: Any = "x"
    for _ in range(5_000):
        deep_list = [deep_list]
    deep_dict: Any = "x"
    deep_object: Any = "x"
    for _ in range(900):
        deep_dict, deep_object = {"a": deep_dict}, Record("a", deep_object)
    slots = type("Slots", (), {"__slots__": ("text",)})()
    slots.text = MagicMock()
    values: dict[str, Any] = {
        "a mock": MagicMock(),
        "a mock in a list": [MagicMock() for _ in range(50)],
        "a mock of awaitables": AsyncMock(),
        "a mock with a class": MagicMock(spec=dict),
        "a mock with a size": MagicMock(__sizeof__=MagicMock(return_value=10**12)),
        "an endless mapping": Endless(),
        "an endless sequence": EndlessList(),
        "an object that answers everything": Everything(),
        "an endless iterator": itertools.count(),
        "a map over waits": map(_wait, range(1_000)),
        "a filter over waits": filter(_wait, range(1_000)),
        "a zip of waits": zip(_waiting(), _waiting(), strict=False),
        "a generator that waits": _waiting(),
        "an endless generator": ("a" * 1_000 for _ in itertools.count()),
        "a slot": slots,
        "a dataclass": Record(MagicMock()),
        "an enumeration": Meaning.BAD,
        "an exception": type("FailureError", (Exception,), {"__str__": _wait})("a"),
        "an exception with a mock": ValueError(MagicMock()),
        "a dictionary as a property": type("SlottedDict", (), {"__dict__": property(_wait)})(),
        "a circle": circle,
        "results within themselves": results,
        "a deep list": deep_list,
        "a deep dict": deep_dict,
        "a deep object": deep_object,
        "a tuple of mocks": tuple(MagicMock() for _ in range(20)),
        "a mapping of the library": UserDict({"a": MagicMock()}),
        "a list of the library": UserList([MagicMock()]),
        "a text of the library": UserString("a"),
        "a default of mocks": defaultdict(MagicMock, {"a": MagicMock()}),
        "a queue": deque([MagicMock()] * 1_000),
        "a lock": threading.Lock(),
        "a module": types.ModuleType("text"),
        "a class": Everything,
        "a function": _wait,
        "an identifier": uuid.uuid4(),
    }
    acts = {"waits": _wait, "raises": raising(RuntimeError("SECRET")), "exits": raising(SystemExit(3)), "grows": _grow}
    return values | {f"{name} that {word}": value for word, act in acts.items() for name, value in hostile(act).items()}


# --- what is called with them ----------------------------------------------------------------------------------------


FIELDS = Trace.__struct_fields__


def run_block(value: Any, **fields: Any) -> None:
    """Set the fields of a block, then its output; `fields` may hold the value as well."""
    with tracejudge.trace(name="n", **fields) as block:
        block.output = value


def run_span(value: Any) -> None:
    with tracejudge.trace(name="n"), tracejudge.trace(name=value, kind=value) as span:
        span.set(attribute=value)


@tracejudge.observe
def observed(values: Any) -> Any:
    return values


@tracejudge.observe
def observed_stream(values: Any) -> Iterator[Any]:
    yield values


@tracejudge.observe(input=raising(OwnExit()), output=raising(SystemExit(3)), kind="llm")
def observed_with_choices(values: Any) -> Any:
    return values


@tracejudge.observe
def fail(value: Any) -> NoReturn:
    raise value if issubclass(type(value), BaseException) else ValueError(value)


def observe_each(value: Any) -> None:
    assert observed(value) is observed_with_choices(value) is next(observed_stream(value)) is value


def raise_observed(value: Any) -> None:
    with contextlib.suppress(BaseException):
        fail(value)


CALLS: dict[str, Callable[[Any], object]] = {
    **{
        f"publish {name}": lambda value, name=name: tracejudge.publish(**{"output": "a", name: value})  # type: ignore[misc]
        for name in (*FIELDS, "unknown", "documents", "traceId")
    },
    "publish one": tracejudge.publish,
    "publish a record": lambda value: tracejudge.publish({"output": value, "tags": {"a": value}}),
    "feedback": lambda value: tracejudge.feedback(value, value, value),
    "trace": lambda value: run_block(value, input=value, kind=value),
    "trace fields": lambda value: run_block("a", session_id=value, context=value, error=value),
    "span": run_span,
    "observe": observed,
    "observe a kind": lambda value: tracejudge.observe(kind=value),
    "raise": raise_observed,
    "wrap_openai": tracejudge.wrap_openai,
    "wrap_anthropic": tracejudge.wrap_anthropic,
}
FURTHER: dict[str, Callable[[Any], object]] = {
    **{
        f"trace {name}": lambda value, name=name: run_block(value, **{name: value})  # type: ignore[misc]
        for name in (*set(FIELDS) - {"output", "name"}, "kind", "unknown")
    },
    "observe in each way": observe_each,
    "feedback score": lambda value: tracejudge.feedback("abc", value),
    "feedback comment": lambda value: tracejudge.feedback("abc", 1, value),
}


@pytest.mark.slow("thousands of objects")
@pytest.mark.swallows
def test_no_object_makes_a_call_raise_and_each_is_delivered_or_counted(
    start: Callable[..., StartedSdk], caplog: pytest.LogCaptureFixture
) -> None:
    """Each error comes from a share of the calls, and each call meets some of the errors."""
    raised = []
    sdk = start(max_items=100_000, max_bytes=1 << 30)
    calls = [*CALLS.items(), *FURTHER.items()]
    for number, error in enumerate(ERRORS):
        for value_name, value in hostile(raising(error)).items():
            for name, call in calls[number % 4 :: 4]:
                try:
                    call(value)
                except BaseException as escaped:  # noqa: BLE001 - the point
                    raised.append((name, value_name, type(error).__name__, type(escaped).__name__))
    tracejudge.publish(output="the last")
    assert raised == []
    assert tracejudge.flush(120)
    for kind in (Kind.TRACE, Kind.FEEDBACK):
        totals = sdk.client.totals(kind)
        assert totals.published == len(sdk.records(kind.value)) + sum(totals.dropped.values()), kind
    assert sdk.outputs()[-1] == "the last"
    assert "SECRET" not in caplog.text


@pytest.mark.swallows
def test_flush_shutdown_and_publish_before_init_take_anything(start: Callable[..., StartedSdk]) -> None:
    assert api._Current.client is None
    for value in hostile(raising(SystemExit(3))).values():
        assert len(tracejudge.publish(trace_id=value, output=value)) in {1, 4, 32}
    start()
    for value in hostile(raising(OwnExit())).values():
        tracejudge.publish(output="a")
        tracejudge.flush(value)
        tracejudge.shutdown(value)


def test_ctrl_c_and_what_a_signal_handler_raises_pass(sdk: StartedSdk, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, handler, expected in (
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
        (signal.SIGUSR1, raising(SystemExit(5)), SystemExit),
        (signal.SIGUSR1, type("Handler", (), {"__call__": raising(SystemExit(5))})(), SystemExit),
    ):
        former = signal.signal(number, handler)
        try:
            with monkeypatch.context() as patch, pytest.raises(expected):  # noqa: PT012 - the signal comes within
                patch.setattr(api, "copy_collections", lambda _, number=number: signal.raise_signal(number))
                tracejudge.publish(output="a")
        finally:
            signal.signal(number, former)
    tracejudge.publish(output="b")
    assert tracejudge.flush(60)
    assert sdk.outputs() == ["b"]


_COST_S, _COST_BYTES = 0.001, 1_000_000
# One for each way of a value through the SDK: most fields take the same.
_COSTED = ("publish output", "publish tags", "observe")
_COSTED_TOO = ("publish context", "publish trace_id", "publish usage", "publish spans", "publish unknown")
_COSTED_TOO += ("publish one", "publish a record", "feedback", "trace fields", "span", "raise", "wrap_openai")


def cost_s(call: Callable[[Any], object], value: object) -> float:
    """Return the least time of a call, of CPU unless it waits: the machine may be busy."""
    least_s, attempts = 1.0, 0
    while least_s > _COST_S and attempts < 20:
        begin_s, begin_wall_s = time.thread_time() if attempts else 0.0, time.perf_counter()
        call(value)
        wall_s = time.perf_counter() - begin_wall_s
        # A wait is far longer than what a busy machine adds.
        if attempts and _COST_S < wall_s <= WAIT_S * 0.9:
            wall_s = (time.thread_time() - begin_s) / slowness()
        least_s = min(least_s, wall_s)
        attempts += 1
    return least_s


@pytest.mark.slow("each function with each value")
@pytest.mark.parametrize("functions", [_COSTED, _COSTED_TOO], ids=["some", "others"])
def test_no_value_costs_the_caller_more_than_a_millisecond_and_a_megabyte(
    start: Callable[..., StartedSdk], functions: Sequence[str]
) -> None:
    large = large_values()
    assert len(hostile_values()) + len(large) >= 85
    sdk = start(max_items=1_000_000, max_bytes=1 << 40)
    sdk.client._delivery._start_thread = lambda: None  # the caller alone is measured
    costly = []
    for function in functions:
        call = CALLS[function]
        for name, value in {**hostile_values(), **large}.items():
            least_s = cost_s(call, value)
            tracemalloc.start()
            call(value)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            if least_s > _COST_S or peak > _COST_BYTES:
                costly.append(f"{function}, {name}: {least_s * 1000:.1f} ms, {peak / 1e6:.1f} MB")
            sdk.client._delivery.buffer._items.clear()
    assert costly == [], "\n".join(costly)


def test_a_conversion_that_does_not_end_costs_its_trace_only(sdk: StartedSdk, caplog: pytest.LogCaptureFixture) -> None:
    for value in (_build(object, _spin), type("Spin", (), {"__str__": _spin})()):
        tracejudge.publish(output="a", context=value)
    for text in ("x" * 100_000_000, b"x" * 60_000_000):
        tracejudge.publish(output=text)
    tracejudge.publish(output="the last", context=(text for text in ("b", "c")))
    assert tracejudge.flush(60)
    last = sdk.traces()[-1]
    assert (last["output"], last["context"]) == ("the last", ["b", "c"])
    totals = sdk.client.totals()
    assert totals.published == len(sdk.traces()) + sum(totals.dropped.values())
    assert "a value whose conversion does not end" in caplog.text


def test_an_enormous_id_or_name_is_cut_before_it_is_held(sdk: StartedSdk) -> None:
    names = (*_NAME_FIELDS, "id", "span_id", "trace_id", "traceId", "user")
    for length in (10**5, 10**7):
        text = "x" * length
        kinds = (text, text.encode(), type("Text", (str,), {})(text))
        sent = [(name, tracejudge.publish(**{"output": "a", name: kind})) for name in names for kind in kinds]
        for (name, trace_id), trace in zip(sent, sdk.flushed(), strict=True):
            assert (trace["trace_id"], len(trace.get(field_of(name)) or "") <= 200) == (trace_id, True), name
        tracejudge.feedback(trace_id := tracejudge.publish(trace_id=text, output="a"), 1)
        tracejudge.feedback(text, 1)
        with tracejudge.trace(trace_id=text, output="a", tags={text: "b"}) as open_trace:
            assert open_trace.trace_id == trace_id
        *_, last = sdk.flushed()
        assert [entry.record["trace_id"] for entry in sdk.entries() if entry.kind != "r"][-4:] == [trace_id] * 4
        (tag,) = last["tags"]
        assert len(tag) == 200
    for kind in (Kind.TRACE, Kind.FEEDBACK):
        assert sdk.client.totals(kind).dropped == {}


@pytest.mark.swallows
def test_an_iterator_that_fails_costs_its_field_only(
    sdk: StartedSdk, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    failing = (text if text == "b" else raising(ValueError("SECRET"))() for text in "bc")
    tracejudge.publish(output="a", context=failing)
    tracejudge.publish({"output": "a", 5: (text for text in ("b", "c"))})
    first, second = sdk.flushed()
    assert (first["output"], second["output"], second["tags"]) == ("a", "a", {"5": '["b","c"]'})
    assert "SECRET" not in caplog.text + capfd.readouterr().err


def test_no_code_runs_where_an_exception_is_copied() -> None:
    calls: list[object] = []

    def called(*arguments: object) -> None:
        calls.append(arguments)

    metaclass = type("Metaclass", (type,), {"__module__": property(called)})
    kinds: list[Any] = [metaclass("Named", (ValueError,), {})]
    kinds += [type("With", (ValueError,), {"args": property(called)}), type("With", (ValueError,), {"__del__": called})]
    errors = [kind("a") for kind in kinds]
    copies = [without_traceback(error) for error in errors]
    assert [copy if type(copy) is str else type(copy) for copy in copies] == [*kinds[:2], "With"]
    assert calls == []
    del kinds[2].__del__
