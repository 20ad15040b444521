"""Tables of cases in `data/*.json`, and the objects in them that JSON lacks.

`{"$Class": arguments}` is such an object. Objects of libraries have the attributes and methods that the SDK may read of
the real ones, without the libraries; a comment names the real class.
"""

import dataclasses
import datetime as dt
import enum
import json
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from types import MappingProxyType, SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
from support.tables import read_table

from tracejudge.model import Document, Feedback, Message, Span, ToolCall, Trace, Usage


class Plain:
    """An object of a class of the service, without any JSON form."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class Model(Plain):
    """A pydantic model: fields as attributes, `model_dump` returns them."""

    def model_dump(self) -> dict[str, Any]:
        return {name: _dumped(value) for name, value in self.__dict__.items()}


def _dumped(value: Any) -> Any:
    if isinstance(value, Model):
        return value.model_dump()
    return [_dumped(item) for item in value] if isinstance(value, list) else value


class ModelV1(Plain):
    """A model of pydantic 1: `dict` returns the fields."""

    __fields__ = ()

    def dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


class Named:
    """An object that defines its text."""

    def __str__(self) -> str:
        return "its text"


@dataclasses.dataclass
class Keyed:
    name: str
    key: str = dataclasses.field(repr=False, default="SECRET")


Order = msgspec.defstruct("Order", ["number", "place"])
Colour = enum.Enum("Colour", {"RED": "red"})
Hit = namedtuple("Hit", "text score")  # noqa: PYI024 - as services make them
Ranked = namedtuple("Ranked", "hit weight")  # noqa: PYI024


class Slotted:
    """An object with slots in place of a `__dict__`."""

    __slots__ = ("content", "id")

    def __init__(self, content: str, id: str) -> None:  # noqa: A002 - the attribute's name
        self.content, self.id = content, id


class Number:
    """A scalar of numpy or torch: no subclass of a number, `item` returns one."""

    def __init__(self, value: float) -> None:
        self._value = value

    def item(self) -> float:
        return self._value

    def __float__(self) -> float:
        return float(self._value)


class Array:
    """An array of numpy, a series of pandas, a tensor of torch."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def tolist(self) -> list[Any]:
        return self._values


class DataFrame:
    """A data frame of pandas."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def to_dict(self, orient: str = "dict") -> Any:
        return self._rows if orient == "records" else {"unused": {}}


class TextNode(Model):  # llama_index.core.schema.TextNode
    def get_content(self, metadata_mode: object = None) -> str:  # noqa: ARG002 - as there
        return str(self.text)


class NodeWithScore(Model):  # llama_index.core.schema.NodeWithScore
    def get_content(self, metadata_mode: object = None) -> str:  # noqa: ARG002 - as there
        return str(self.node.text)


@dataclasses.dataclass
class LlamaResponse:  # llama_index.core.base.response.schema.Response
    response: str | None
    source_nodes: list[Any] = dataclasses.field(default_factory=list)
    metadata: dict[str, Any] | None = None

    def __str__(self) -> str:
        return self.response or "None"


class PineconeVector:  # pinecone ScoredVector
    def __init__(self, **fields: Any) -> None:
        self._data_store = fields

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.__dict__["_data_store"]:
            raise AttributeError(name)
        return self.__dict__["_data_store"][name]

    def to_dict(self) -> dict[str, Any]:
        return dict(self._data_store)


def _record(name: str, **defaults: Any) -> type:
    """Make a dataclass whose fields have these defaults."""
    fields = [
        (field, Any, dataclasses.field(default_factory=lambda value=value: value)) for field, value in defaults.items()
    ]
    return dataclasses.make_dataclass(name, fields)


# Of the service, of weaviate.collections.classes.internal, and of haystack.dataclasses.
_RECORDS = {
    "Parcel": {"number": 0, "place": ""},
    "WeaviateObject": {"uuid": None, "metadata": None, "properties": {}, "references": None, "vector": {}},
    "WeaviateReturn": {"objects": []},
    "WeaviateMetadata": {"distance": None, "certainty": None, "score": None},
    "HaystackDocument": {"id": "", "content": None, "meta": {}, "score": None, "blob": None, "embedding": None},
    "HaystackText": {"text": ""},
    "HaystackMessage": {"_role": "", "_content": [], "_name": None, "_meta": {}},
}


def _coroutine() -> Any:
    async def never() -> None: ...

    coroutine = never()
    coroutine.close()
    return coroutine


_BY_FIELDS = (Plain, Model, ModelV1, Named, Keyed, Order, Hit, Ranked, Slotted, TextNode, NodeWithScore)
_MAKERS: dict[str, Any] = {
    **{
        kind.__name__: lambda fields, kind=kind: kind(**fields)
        for kind in (
            *(*_BY_FIELDS, LlamaResponse, PineconeVector, SimpleNamespace, OrderedDict),
            *(Document, Feedback, Message, Span, ToolCall, Trace, Usage),
            *(_record(name, **fields) for name, fields in _RECORDS.items()),
        )
    },
    **{kind.__name__: lambda arguments, kind=kind: kind(*arguments) for kind in (ValueError, KeyError, TimeoutError)},
    **{
        kind.__name__: kind
        for kind in (
            *(Colour, Number, Array, DataFrame, Decimal, Fraction, UUID, complex, float, tuple, set, deque, dict),
            *(PurePosixPath, MappingProxyType, UserDict),
        )
    },
    "class": {"TimeoutError": TimeoutError}.__getitem__,
    "object": lambda _: object(),
    "coroutine": lambda _: _coroutine(),
    "generator": lambda values: (value for value in values),
    "map": lambda values: map(str, values),
    "iterator": iter,
    "values": lambda values: values.values(),
    "defaultdict": lambda values: defaultdict(str, values),
    "repeat": lambda values: values[0] * values[1],
    "power": lambda values: values[0] ** values[1],
    "nested": lambda depth: [_MAKERS["nested"](depth - 1)] if depth else "end",
    "join": "".join,
    "bytes": lambda text: text.encode("latin-1"),
    "bytearray": lambda text: bytearray(text.encode("latin-1")),
    "json": json.dumps,
    "date": dt.date.fromisoformat,
    "datetime": dt.datetime.fromisoformat,
    # Of this machine's time zone.
    "naive": dt.datetime.fromtimestamp,
    "naive_text": lambda seconds: dt.datetime.fromtimestamp(seconds).isoformat(),  # noqa: DTZ006
    "stamp": lambda day: dt.datetime.fromisoformat(day).timestamp(),
}


def revived(value: Any) -> Any:
    """Make the objects that a value of a table names."""
    if type(value) is list:
        return [revived(item) for item in value]
    if type(value) is not dict:
        return value
    fields = {name: revived(item) for name, item in value.items()}
    (name, argument), *others = fields.items() or [("", None)]
    return fields if others or not name.startswith("$") else _MAKERS[name[1:]](argument)


def table(name: str) -> Any:
    """Read `data/NAME.json`, each time anew."""
    return revived(read_table(__file__, name))
