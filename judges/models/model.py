"""What a judge model is: something that answers chat messages, or says in one of a few ways why it did not.

ModelError                       root; ``reason`` is the verdict's reason
├── RateLimitedError             429
├── ModelTimeoutError            no answer in time
├── ModelUnavailableError        no connection, 408, 5xx, an answer that is none
├── ModelRejectedError           401, 402, 403, 404, quota or credit used up: the operator must act
├── BadModelRequestError         another 4xx: this request will never be taken
│   └── ToolsRefusedError        the endpoint takes no tools
├── InputTooLongError            the endpoint says that the context is full
└── ContentFilteredError         the endpoint's filter refuses the request
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Literal, Protocol, runtime_checkable

from msgspec import Raw, Struct

from judges.models.quota import Quota
from judges.prompt import Message, ToolCall
from judges.verdict import Call, Reason

__all__ = [
    "BadModelRequestError",
    "ChatModel",
    "ChatRequest",
    "ChatResponse",
    "ContentFilteredError",
    "FinishReason",
    "InputTooLongError",
    "ModelError",
    "ModelRejectedError",
    "ModelSettings",
    "ModelTimeoutError",
    "ModelUnavailableError",
    "Price",
    "RateLimitedError",
    "Tool",
    "ToolsRefusedError",
]

FinishReason = Literal["stop", "length", "content_filter", "other"]

DEFAULT_TIMEOUT_S: Final = 60.0
_MILLION: Final = 1_000_000


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """What a model costs, in USD per million tokens."""

    input: float
    output: float

    def cost_usd(self, input_tokens: int, output_tokens: int) -> float:
        """Say what so many tokens cost."""
        return (input_tokens * self.input + output_tokens * self.output) / _MILLION


class ModelSettings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One `[models.NAME]` of the configuration.

    Attributes:
        provider: Which kind of endpoint.
        base_url: Where `/chat/completions` hangs, with the version path; http or https. `anthropic` adds
            `/v1/messages`, and asks the public API where this is absent.
        model: The model's name at the endpoint, and the judge model in verdicts and metrics.
        api_key_env: Name of the variable that holds the key; the key itself is refused here.
        api_key_file: File that holds the key and nothing else, read at start, as a mounted secret; instead of
            `api_key_env`.
        allow_link_local: Let the endpoint be at a link-local, metadata or unspecified address, which is refused else.
        max_in_flight: How many calls may be under way at once.
        max_input_tokens: What a request may hold; longer traces are cut.
        price: What it costs; without it verdicts carry no cost.
        label: The judge model's name where two endpoints serve the same `model`.
        timeout_s: How long one call may take.
        script: File with the steps of a `scripted` model, a JSON object a line.
        max_output_tokens: How long an answer of an `anthropic` model may be, its thinking included; one that is cut
            off is asked for once more with twice as many. 8192 where absent; other providers take none.
    """

    provider: Literal["openai", "anthropic", "lexical", "scripted"] = "openai"
    base_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    max_in_flight: int = 256
    max_input_tokens: int = 120_000
    price: Price | None = None
    label: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    script: str | None = None
    max_output_tokens: int | None = None
    api_key_file: str | None = None
    allow_link_local: bool = False

    def __repr__(self) -> str:
        # The base URL may hold a password.
        return f"ModelSettings(provider={self.provider!r}, judge_model={self.judge_model!r})"

    @property
    def judge_model(self) -> str:
        """The name under which verdicts and metrics know this model."""
        return self.label or self.model or self.provider


class Tool(Struct, frozen=True):
    """A function that a model may ask to be called; ``parameters`` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, object]


class ChatRequest(Struct, frozen=True):
    """One question to a judge model.

    ``heuristic`` gives the answer of the built-in lexical model, JSON or a text; endpoints never see it.
    ``begins`` is called by a model that lets requests wait, each time that it sends one, with those for the same answer
    that failed before.
    ``tools`` are those that the messages speak of; the model may call them unless ``may_call`` is false, which asks for
    the answer itself. Structured output is asked for where no tool may be called.
    """

    messages: tuple[Message, ...]
    schema_name: str
    schema: Mapping[str, object]
    heuristic: Callable[[], object]
    begins: Callable[[tuple[Call, ...]], object] | None = None
    tools: tuple[Tool, ...] = ()
    may_call: bool = True

    @property
    def offers_tools(self) -> bool:
        """Whether the model may ask for calls before it answers."""
        return self.may_call and bool(self.tools)


class ChatResponse(Struct, frozen=True):
    """One answer of a judge model.

    Attributes:
        quota: What the endpoint says is left to ask for.
        took_s: How long the request that was answered took, without what it waited for; set by models that let
            requests wait.
        failed: The requests for the same answer that failed before.
        tool_calls: What the model wants called before it answers.
        opaque: What the endpoint wants back beside this answer (``Message.opaque``).
    """

    text: str
    finish_reason: FinishReason = "stop"
    refusal: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    response_id: str | None = None
    model: str | None = None
    quota: Quota | None = None
    took_s: float | None = None
    failed: tuple[Call, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    opaque: Raw | None = None


@runtime_checkable
class ChatModel(Protocol):
    """A judge model. Implementations are used by one event loop and by many coroutines at once."""

    settings: ModelSettings

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer one request.

        Raises:
            ModelError: With the reason why there is no answer.
        """
        ...

    async def aclose(self) -> None:
        """Give back connections."""
        ...


class ModelError(Exception):
    """There is no answer. The message is ours and holds no text of request, answer or key.

    Attributes:
        input_tokens: Spent all the same, as on an answer that was cut off before.
        output_tokens: The same.
        retry_after_s: How long the endpoint asked us to wait, or how long it is left alone.
        quota: What the endpoint says is left to ask for.
        took_s: As that of a response.
        failed: As those of a response.
        was_asked: False where no request was sent, because the endpoint is left alone for a while.
    """

    reason: ClassVar[Reason] = "judge_unavailable"
    input_tokens: int = 0
    output_tokens: int = 0
    quota: Quota | None = None
    took_s: float | None = None
    failed: tuple[Call, ...] = ()
    was_asked: bool = True

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimitedError(ModelError):
    """The endpoint asks for fewer requests."""

    reason = "rate_limited"


class ModelTimeoutError(ModelError):
    """The endpoint did not answer in time."""

    reason = "timeout"


class ModelUnavailableError(ModelError):
    """The endpoint cannot be reached, or fails by itself."""

    reason = "judge_unavailable"


class ModelRejectedError(ModelError):
    """The endpoint does not let us in: key, payment, permission, model name, or a quota that is used up."""

    reason = "judge_rejected"


class BadModelRequestError(ModelError):
    """The endpoint takes our requests, but not this one."""

    reason = "bad_request"


class ToolsRefusedError(BadModelRequestError):
    """The endpoint does not take tools, or not as this request names them."""


class InputTooLongError(ModelError):
    """The request is longer than the model's context."""

    reason = "input_too_long"


class ContentFilteredError(ModelError):
    """The endpoint's content filter refuses the request."""

    reason = "content_filter"
