"""At least sixty values that harm whoever runs one of their methods: they raise, wait, grow or answer everything."""

import enum
import itertools
import threading
import time
import types
import uuid
from collections import OrderedDict, UserDict, UserList, UserString, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock, NonCallableMagicMock, PropertyMock

WAIT_S = 0.3
_GROWN: list[bytes] = []
PUBLIC = (
    *("copy", "keys", "values", "items", "get", "encode", "strip", "model_dump", "dict", "to_dict", "tolist", "item"),
    *("json", "text", "content", "name", "id", "value", "timestamp", "isoformat", "get_content"),
)
DUNDERS = (
    *("__bool__", "__len__", "__str__", "__repr__", "__format__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__"),
    *("__ge__", "__hash__", "__iter__", "__next__", "__getitem__", "__contains__", "__sizeof__", "__copy__"),
    *("__deepcopy__", "__index__", "__float__", "__int__", "__add__", "__radd__", "__mod__", "__call__"),
    *("__reduce_ex__", "__await__", "__getstate__", "__dir__", "__fspath__", "__bytes__", "__complex__", "__round__"),
    *("__reversed__", "__enter__", "__length_hint__", "__missing__", "__getattr__", "__aiter__", "__or__", "__ror__"),
    *("__ior__", "__buffer__"),
)


def _wait(*_: Any, **__: Any) -> Any:
    time.sleep(WAIT_S)


def _raise(*_: Any, **__: Any) -> Any:
    raise RuntimeError("SECRET")


def _exit(*_: Any, **__: Any) -> Any:
    raise SystemExit(3)


def _grow(*_: Any, **__: Any) -> Any:
    _GROWN.append(b"x" * 4_000_000)


def _spin(*_: Any, **__: Any) -> Any:
    end = time.monotonic() + 3  # far above the limit of a conversion
    while time.monotonic() < end:
        pass


def _build(base: type, act: Callable[..., Any], *arguments: Any, full: bool = False) -> Any:
    """Make a value of a class with a base whose every method acts; `full` covers its attributes as well."""
    names = [name for name in (*DUNDERS, *PUBLIC) if base is object or hasattr(base, name)]
    methods: dict[str, Any] = dict.fromkeys(names, act)
    if full:
        methods |= {"__getattribute__": act, "__class__": property(act), "__dict__": property(act)}
    if base is not object:
        methods.pop("__hash__", None)
    return type("Hostile", (base,), methods)(*arguments)


def _meta(act: Callable[..., Any]) -> Any:
    names = ("__name__", "__module__", "__mro__", "__dict__")
    methods: dict[str, Any] = {name: property(act) for name in names}
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


class Slots:
    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text = MagicMock()


@dataclass
class Record:
    text: Any
    owner: Any = None

    @property
    def content(self) -> Any:
        return _wait()


class Meaning(enum.Enum):
    BAD = "bad"

    def __str__(self) -> str:
        time.sleep(WAIT_S)
        return "SECRET"


class FailureError(Exception):
    def __str__(self) -> str:
        time.sleep(WAIT_S)
        return "SECRET"


class SlottedDict:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return _wait()


def _waiting() -> Iterator[Any]:
    time.sleep(WAIT_S)
    yield "a"


def _nested(kind: Callable[[Any], Any], depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = kind(value)
    return value


def hostile_values() -> dict[str, Any]:
    """Make the values anew, by name."""
    circle: list[Any] = []
    circle.append(circle)
    results: dict[str, Any] = {}
    results["documents"] = results
    values: dict[str, Any] = {
        "a mock": MagicMock(),
        "a mock in a list": [MagicMock() for _ in range(50)],
        "a mock in a dict": {"a": MagicMock(), "text": MagicMock()},
        "a mock of awaitables": AsyncMock(),
        "a plain mock": Mock(),
        "a mock that is not callable": NonCallableMagicMock(),
        "a mock with a class": MagicMock(spec=dict),
        "a mock of a property": PropertyMock(),
        "a mock with a size": MagicMock(__sizeof__=MagicMock(return_value=10**12)),
        "an endless mapping": Endless(),
        "an endless sequence": EndlessList(),
        "an object that answers everything": Everything(),
        "an endless iterator": itertools.count(),
        "an endless repeat": itertools.repeat("a"),
        "a map over waits": map(_wait, range(1_000)),
        "a filter over waits": filter(_wait, range(1_000)),
        "a zip of waits": zip(_waiting(), _waiting(), strict=False),
        "a generator that waits": _waiting(),
        "an endless generator": ("a" * 1_000 for _ in itertools.count()),
        "a slot": Slots(),
        "a dataclass": Record(MagicMock()),
        "an enumeration": Meaning.BAD,
        "an exception": FailureError("a"),
        "an exception with a mock": ValueError(MagicMock()),
        "a dictionary as a property": SlottedDict(),
        "a circle": circle,
        "results within themselves": results,
        "a deep list": _nested(lambda value: [value], 5_000),
        "a deep dict": _nested(lambda value: {"a": value}, 900),
        "a deep object": _nested(lambda value: Record("a", value), 900),
        "a tuple of mocks": tuple(MagicMock() for _ in range(20)),
        "a mapping of the library": UserDict({"a": MagicMock()}),
        "a list of the library": UserList([MagicMock()]),
        "a text of the library": UserString("a"),
        "a default of mocks": defaultdict(MagicMock, {"a": MagicMock()}),
        "an ordered dict": OrderedDict(a=MagicMock()),
        "a queue": deque([MagicMock()] * 1_000),
        "a lock": threading.Lock(),
        "a module": types.ModuleType("text"),
        "a class": Everything,
        "a function": _wait,
        "a large text": "x" * 100_000_000,
        "a large wide text": "\u4e2d" * 10_000_000,
        "large bytes": b"x" * 100_000_000,
        "large changeable bytes": bytearray(50_000_000),
        "a view of bytes": memoryview(bytearray(50_000_000)),
        "a million texts": ["a"] * 1_000_000,
        "a million texts as a tuple": ("a",) * 1_000_000,
        "a million lists": [["a"]] * 1_000_000,
        "a million dicts": [{"role": "user", "content": "a"}] * 1_000_000,
        "a million names": dict.fromkeys(map(str, range(1_000_000)), "a"),
        "a million numbers": set(range(1_000_000)),
        "a queue of a million": deque(["a"], 1_000_000) * 1_000_000,
        "a large number": 1 << 5_000_000,
        "an identifier": uuid.uuid4(),
        "a range": range(10**12),
        "keys": dict.fromkeys(range(1_000_000)).keys(),
        "a class with a hostile class": _meta(_wait),
        "a class whose class raises": _meta(_raise),
    }
    for word, act in (("waits", _wait), ("raises", _raise), ("exits", _exit), ("grows", _grow)):
        values[f"an object that {word}"] = _build(object, act)
        values[f"a whole object that {word}"] = _build(object, act, full=True)
        for base, argument in ((str, "text"), (list, ["a"]), (dict, {"a": "b"}), (int, 7), (float, 0.5), (tuple, "ab")):
            values[f"a {base.__name__} that {word}"] = _build(base, act, argument)
        values[f"an error that {word}"] = _build(Exception, act, "a")
    return values


def stuck_values() -> dict[str, Any]:
    """Make values whose conversion does not end by itself for a long time."""
    return {"spins": _build(object, _spin), "spins in its text": type("Spin", (), {"__str__": _spin})()}
