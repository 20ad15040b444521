"""Objects with the attributes of those that services pass to `publish`, without the libraries that define them.

Each class has the attributes and methods of the real one that the SDK may read; the comment names the real class.
"""

import dataclasses
import enum
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec


class Model:
    """A pydantic model: fields as attributes, `model_dump` returns them."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def model_dump(self) -> dict[str, Any]:
        return {name: _dumped(value) for name, value in self.__dict__.items()}


class ModelV1:
    """A model of pydantic 1: `dict` returns the fields."""

    __fields__ = ()

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def _dumped(value: Any) -> Any:
    if isinstance(value, Model):
        return value.model_dump()
    return [_dumped(item) for item in value] if isinstance(value, list) else value


class Plain:
    """An object of a class of the service, without any JSON form."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class Named:
    """An object that defines its text."""

    def __str__(self) -> str:
        return "its text"


@dataclasses.dataclass
class Parcel:
    number: int
    place: str


@dataclasses.dataclass
class Keyed:
    name: str
    key: str = dataclasses.field(repr=False, default="SECRET")


class Order(msgspec.Struct):
    number: int
    place: str


class Colour(enum.Enum):
    RED = "red"


class Hit(NamedTuple):
    text: str
    score: float


class Ranked(NamedTuple):
    hit: Any
    weight: float


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


# --- documents -------------------------------------------------------------------------------------------------------


def langchain(text: str, **metadata: Any) -> Model:  # langchain_core.documents.Document
    return Model(id=metadata.pop("id", None), metadata=metadata, page_content=text, type="Document")


class _TextNode(Model):  # llama_index.core.schema.TextNode
    def get_content(self, metadata_mode: object = None) -> str:  # noqa: ARG002 - as there
        return str(self.text)


class _NodeWithScore(Model):  # llama_index.core.schema.NodeWithScore
    def get_content(self, metadata_mode: object = None) -> str:  # noqa: ARG002 - as there
        return str(self.node.text)


def llama_index(text: str, node_id: str, score: float | None, **metadata: Any) -> Any:
    return _NodeWithScore(node=_TextNode(id_=node_id, text=text, metadata=metadata), score=score)


@dataclasses.dataclass
class LlamaResponse:  # llama_index.core.base.response.schema.Response
    response: str | None
    source_nodes: list[Any] = dataclasses.field(default_factory=list)
    metadata: dict[str, Any] | None = None

    def __str__(self) -> str:
        return self.response or "None"


def qdrant(text: str, point_id: int | str, score: float, **payload: Any) -> Model:  # qdrant_client ScoredPoint
    return Model(id=point_id, version=3, score=score, payload={"text": text, **payload}, vector=None)


class PineconeVector:  # pinecone ScoredVector
    def __init__(self, **fields: Any) -> None:
        self._data_store = fields

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.__dict__["_data_store"]:
            raise AttributeError(name)
        return self.__dict__["_data_store"][name]

    def to_dict(self) -> dict[str, Any]:
        return dict(self._data_store)


@dataclasses.dataclass
class WeaviateObject:  # weaviate.collections.classes.internal.Object
    uuid: Any
    metadata: Any
    properties: dict[str, Any]
    references: Any = None
    vector: dict[str, Any] = dataclasses.field(default_factory=dict)
    collection: str = "Docs"


@dataclasses.dataclass
class WeaviateReturn:  # weaviate QueryReturn
    objects: list[Any]


@dataclasses.dataclass
class WeaviateMetadata:  # weaviate MetadataReturn
    distance: float | None = None
    certainty: float | None = None
    score: float | None = None


@dataclasses.dataclass
class HaystackDocument:  # haystack.Document
    id: str
    content: str | None
    meta: dict[str, Any] = dataclasses.field(default_factory=dict)
    score: float | None = None
    blob: Any = None
    embedding: Any = None


CHROMA_QUERY: dict[str, Any] = {
    "ids": [["a", "b"]],
    "embeddings": None,
    "documents": [["Tea is hot.", "Ice is cold."]],
    "uris": None,
    "included": ["metadatas", "documents", "distances"],
    "data": None,
    "metadatas": [[{"source": "tea.md"}, None]],
    "distances": [[0.25, 0.5]],
}
CHROMA_GET: dict[str, Any] = {
    "ids": ["a", "b"],
    "embeddings": None,
    "documents": ["Tea is hot.", None],
    "uris": None,
    "included": ["metadatas", "documents"],
    "data": None,
    "metadatas": [{"source": "tea.md"}, {"source": "ice.md"}],
}

# --- answers and messages --------------------------------------------------------------------------------------------


def openai_message(text: str | None, calls: list[Any] | None = None) -> Model:  # openai ChatCompletionMessage
    return Model(
        content=text, refusal=None, role="assistant", annotations=None, audio=None, function_call=None, tool_calls=calls
    )


def openai_call(name: str, arguments: str, call_id: str = "call_1") -> Model:  # openai ChatCompletionMessageToolCall
    return Model(id=call_id, function=Model(arguments=arguments, name=name), type="function")


def openai_completion(text: str) -> Model:  # openai ChatCompletion
    choice = Model(finish_reason="stop", index=0, logprobs=None, message=openai_message(text))
    usage = Model(completion_tokens=3, prompt_tokens=12, total_tokens=15)
    return Model(id="chatcmpl-1", choices=[choice], created=1, model="gpt-x", object="chat.completion", usage=usage)


def openai_response(text: str) -> Model:  # openai.types.responses.Response
    content = Model(annotations=[], text=text, type="output_text", logprobs=[])
    message = Model(id="msg_1", content=[content], role="assistant", status="completed", type="message")
    thought = Model(id="rs_1", summary=[], type="reasoning")
    return Model(id="resp_1", created_at=1.0, model="gpt-x", object="response", output=[thought, message])


def anthropic_message(text: str) -> Model:  # anthropic.types.Message
    return Model(
        id="msg_1",
        content=[Model(citations=None, text=text, type="text")],
        model="claude-x",
        role="assistant",
        stop_reason="end_turn",
        stop_sequence=None,
        type="message",
        usage=Model(input_tokens=12, output_tokens=3),
    )


def langchain_message(kind: str, text: Any, **more: Any) -> Model:  # langchain_core.messages
    return Model(content=text, additional_kwargs={}, response_metadata={}, type=kind, name=None, id=None, **more)


def llama_message(role: str, text: str) -> Model:  # llama_index.core.llms.ChatMessage
    return Model(role=role, additional_kwargs={}, blocks=[Model(block_type="text", text=text)])


@dataclasses.dataclass
class HaystackText:  # haystack.dataclasses.TextContent
    text: str


@dataclasses.dataclass
class HaystackMessage:  # haystack.dataclasses.ChatMessage
    _role: str
    _content: list[Any]
    _name: str | None = None
    _meta: dict[str, Any] = dataclasses.field(default_factory=dict)


def gemini_response(text: str) -> Model:  # google.genai.types.GenerateContentResponse
    content = Model(parts=[Model(text=text)], role="model")
    return Model(candidates=[Model(content=content, finish_reason="STOP")], model_version="g")


def namespace(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**fields)
