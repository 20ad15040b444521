"""Objects whose methods raise anything cost a count and never raise in the host; what is not theirs passes."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import pytest
from sdk_started import StartedSdk

import tracejudge
from tracejudge import api
from tracejudge.delivery.buffer import Kind
from tracejudge.model import Trace


class OwnExit(BaseException):
    """What a host may derive from BaseException."""


ERRORS: tuple[BaseException, ...] = (
    ValueError("SECRET"),
    SystemExit(3),
    SystemExit([]),
    OwnExit("SECRET"),
    GeneratorExit(),
    asyncio.CancelledError(),
    RecursionError(),
)
_ASKED = (
    *("__bool__", "__len__", "__str__", "__repr__", "__format__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__"),
    *(
        "__ge__",
        "__hash__",
        "__iter__",
        "__next__",
        "__getitem__",
        "__contains__",
        "__sizeof__",
        "__copy__",
        "__index__",
    ),
    *("__float__", "__int__", "__add__", "__radd__", "__mod__", "__call__", "__reduce_ex__", "__await__", "__enter__"),
    *("copy", "keys", "values", "items", "encode", "model_dump", "__dict__", "__getattr__", "__fspath__", "__bytes__"),
)


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


def hostile(error: BaseException) -> Iterator[Any]:
    """Make objects that raise an error when anything is asked of them."""
    fail = raising(error)
    methods: dict[str, Any] = {name: fail for name in _ASKED if name not in {"__call__", "__dict__"}}
    for base, *arguments in ((object,), (str, "text"), (list, ["a"]), (dict, {"a": "b"}), (float, 1.0), (int, 7)):
        asked = {name: method for name, method in methods.items() if base is object or hasattr(base, name)}
        yield type("Hostile", (base,), asked)(*arguments)
    yield type("Lazy", (), {**methods, "__class__": property(fail), "__getattribute__": fail})()
    metaclass = type("Metaclass", (type,), {"__name__": property(fail), "__module__": property(fail)})
    yield metaclass("Nameless", (), {})()
    yield metaclass("NamelessError", (Exception,), {"__str__": fail})()
    yield ["a", type("Within", (), methods)()]
    yield {"a": type("Within", (), methods)()}


def publish_each(field: str, value: Any) -> None:
    tracejudge.publish(**{"output": "a", field: value})


def trace_each(field: str, value: Any) -> None:
    with tracejudge.trace(**{"name": "n", field: value}) as open_trace:
        open_trace.output = value
        open_trace.set(**{field: value})
        with tracejudge.trace(name="inner", input=value, kind=value):
            tracejudge.current().set(attribute=value)


def observe_each(_: str, value: Any) -> None:
    @tracejudge.observe
    def plain(given: Any) -> Any:
        return given

    @tracejudge.observe
    def stream(given: Any) -> Iterator[Any]:
        yield given

    @tracejudge.observe(input=raising(OwnExit()), output=raising(SystemExit(3)), kind="llm")
    def chosen(given: Any) -> Any:
        return given

    assert plain(value) is value
    assert next(stream(value)) is value
    assert chosen(value) is value


def give_feedback(_: str, value: Any) -> None:
    tracejudge.feedback(value, 1)
    tracejudge.feedback("abc", value)
    tracejudge.feedback("abc", 1, value)


CALLS: dict[str, tuple[Callable[[str, Any], None], tuple[str, ...]]] = {
    "publish": (publish_each, (*Trace.__struct_fields__, "unknown")),
    "trace": (trace_each, (*Trace.__struct_fields__, "kind", "unknown")),
    "observe": (observe_each, ("",)),
    "feedback": (give_feedback, ("",)),
}


@pytest.mark.swallows
@pytest.mark.parametrize("errors", [ERRORS[:2], pytest.param(ERRORS, marks=pytest.mark.slow("the other errors"))])
@pytest.mark.parametrize("call", CALLS)
def test_no_object_makes_a_call_raise_and_each_is_delivered_or_counted(
    start: Callable[..., StartedSdk], caplog: pytest.LogCaptureFixture, call: str, errors: Sequence[BaseException]
) -> None:
    """In `make test` half of the fields get the first error, and half the second."""
    step = 1 if errors is ERRORS else 2
    make, fields = CALLS[call]
    raised = []
    sdk = start(max_items=100_000, max_bytes=1 << 30)
    for number, error in enumerate(errors):
        for value in hostile(error):
            for field in fields[number % step :: step] or fields:
                try:
                    make(field, value)
                except BaseException as escaped:  # noqa: BLE001 - the point
                    raised.append((call, field, object.__repr__(value), type(error).__name__, type(escaped).__name__))
    tracejudge.publish(output="the last")
    assert raised == []
    assert tracejudge.flush(120)
    for kind in (Kind.TRACE, Kind.FEEDBACK):
        totals = sdk.client.totals(kind)
        sent = sum(entry.kind == kind.value for entry in sdk.entries())
        assert totals.published == sent + sum(totals.dropped.values()), kind
    assert sdk.traces()[-1]["output"] == "the last"
    assert "SECRET" not in caplog.text


@pytest.mark.swallows
def test_flush_shutdown_and_publish_before_init_take_anything(start: Callable[..., StartedSdk]) -> None:
    tracejudge.shutdown(0)  # of a client that another test of this process has left
    api._Current.client = None
    for value in hostile(SystemExit(3)):
        assert api._Current.client is None
        assert len(tracejudge.publish(trace_id=value, output=value)) in {1, 4, 32}
    start()
    for value in hostile(OwnExit()):
        tracejudge.publish(output="a")
        tracejudge.flush(value)
        tracejudge.shutdown(value)


class _Interrupting(list[str]):
    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__(["a"])
        self.act = act

    def copy(self) -> NoReturn:
        self.act()
        raise AssertionError("the signal must have come")


def test_ctrl_c_and_what_a_signal_handler_raises_pass(sdk: StartedSdk) -> None:
    class Handler:
        def __call__(self, *_: object) -> NoReturn:
            raise SystemExit(5)

    def stop(*_: object) -> NoReturn:
        raise SystemExit(5)

    with pytest.raises(KeyboardInterrupt):
        tracejudge.publish(output="a", context=_Interrupting(lambda: signal.raise_signal(signal.SIGINT)))
    for handler in (stop, Handler()):
        former = signal.signal(signal.SIGUSR1, handler)
        try:
            with pytest.raises(SystemExit) as ended:
                tracejudge.publish(output="a", context=_Interrupting(lambda: os.kill(os.getpid(), signal.SIGUSR1)))
        finally:
            signal.signal(signal.SIGUSR1, former)
        assert ended.value.code == 5
    tracejudge.publish(output="b")
    assert tracejudge.flush(60)
    assert [trace["output"] for trace in sdk.traces()] == ["b"]
