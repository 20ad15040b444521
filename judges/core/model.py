"""Judge models: the protocol of a chat model, its requests and responses, and the errors it raises.

ModelError                       root; ``reason`` is the verdict's reason
├── RateLimitedError             429
├── ModelTimeoutError            no answer in time
├── ModelUnavailableError        no connection, 408, 409, 425, 499, 5xx, an invalid reply
├── ModelRejectedError           401 to 405, 407, 410, 421, 451, quota or credit exhausted: the operator must act
├── BadModelRequestError         400, 422 and the like: this request will never be accepted
│   └── ToolsRefusedError        the endpoint does not support tools
├── OverBudgetError              a budget refuses the request
├── InputTooLongError            the endpoint says that the context is full
└── ContentFilteredError         the endpoint's filter refuses the request
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar, Final, Literal, NamedTuple, Protocol, runtime_checkable

from msgspec import Raw, Struct, field

from judges.core.decision import Decision, Question
from judges.core.prompt import Message, ToolCall
from judges.core.verdict import Call, Reason, Refusals


class Window(NamedTuple):
    """The units left until ``reset_s`` seconds from now, or until ``reset_at``, a Unix time."""

    left: float
    reset_s: float | None
    reset_at: float | None = None


class Quota(NamedTuple):
    """Remaining requests, and remaining tokens of the scarcest kind."""

    requests: Window | None
    tokens: Window | None


# Fields of a reply that are dropped, and counted, when their values are out of bounds.
REPLY_FIELDS: Final = ("id", "model", "usage")
Direction = Literal["input", "output"]
FinishReason = Literal["stop", "length", "content_filter", "other"]
DEFAULT_TIMEOUT_S: Final = 60.0
ModelKind = Literal["chat", "decisions", "classifier"]
"""What a model answers: text; typed questions, with probabilities; questions about pairs of texts, likewise."""
Dialect = Literal["openai", "systemone"]
Backend = Literal["http", "onnx"]


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """USD per million tokens. With ``cached_input`` tokens written to a cache cost a quarter more than others."""

    input: float
    output: float
    cached_input: float | None = None

    def cost_usd(
        self, input_tokens: float, output_tokens: float = 0, cached_tokens: float = 0, written_tokens: float = 0
    ) -> float:
        """Return the cost of these tokens; the input contains those that were read from a cache or written to it."""
        usd = input_tokens * self.input + output_tokens * self.output
        if self.cached_input is not None:
            usd += cached_tokens * (self.cached_input - self.input) + written_tokens * self.input / 4
        return usd / 1_000_000

    def is_known(self, used: "Call | ChatResponse") -> bool:
        """Return whether the tokens that cost something were reported: unknown is not free."""
        return bool((used.input_tokens or not self.input) and (used.output_tokens or not self.output))

    def cost_of(self, used: "Call | ChatResponse") -> float:
        """Return the cost of one request in USD."""
        return self.cost_usd(used.input_tokens, used.output_tokens, used.cached_tokens, used.written_tokens)


class CallTotals(Struct, frozen=True, array_like=True):
    """Calls and cost of all rounds of an evaluation; stored while it waits, and in its dead letter."""

    calls: int = 0  # Requests to the judge model.
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0  # None if a round had no price, or an answer lacked a count that has one.
    is_known: bool = True  # Whether the endpoint reported the tokens of each answer: unknown is not free.
    refusals: Refusals = Refusals()  # Those that count towards a final `bad_request`.

    @property
    def reported(self) -> "CallTotals":
        """The sum for verdicts: no tokens and cost if some are unknown, since a part would look like the whole."""
        return self if self.is_known else CallTotals(self.calls, cost_usd=None)

    def plus(self, calls: Sequence[Call], price: Price | None, refusals: Refusals = Refusals()) -> "CallTotals":  # noqa: B008 - frozen
        """Add a round."""
        answered = [call for call in calls if call.status == "ok"]
        has_cost = price is not None and self.cost_usd is not None and all(map(price.is_known, answered))
        hides_tokens = any(not call.input_tokens and not call.output_tokens for call in answered)
        return CallTotals(
            self.calls + len(calls),
            self.input_tokens + sum(call.input_tokens for call in calls),
            self.output_tokens + sum(call.output_tokens for call in calls),
            (self.cost_usd or 0.0) + sum(map(price.cost_of, calls)) if price is not None and has_cost else None,
            self.is_known and not hides_tokens,
            max(self.refusals, refusals),
        )


class HeaderSource(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The place of a header's value.

    Attributes:
        env: Name of a variable that holds it.
        file: A file that holds it and nothing else.
    """

    env: str | None = None
    file: str | None = None


class ModelSettings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One `[models.NAME]` of the configuration; the reference adds which providers have a setting of their own.

    Attributes:
        provider: Kind of endpoint.
        base_url: URL to which `/chat/completions` is appended, with the version path; http or https. `anthropic`
            appends `/v1/messages`; its default is the public API.
        model: Name of the model at the endpoint, and the judge model in verdicts and metrics.
        api_key_env: Name of the variable that holds the key; the key itself is refused here.
        api_key_file: File that holds only the key, such as a mounted secret, read at start; instead of `api_key_env`.
        allow_link_local: Allow a link-local, metadata or unspecified address, which is otherwise refused.
        max_in_flight: Maximum number of concurrent calls.
        max_input_tokens: Maximum size of a request. Of a longer trace the oldest messages are left out; one whose
            documents would be left out is unscored, `input_too_long`, unless the judge has `score_cut`.
        price: Price per million tokens; without it verdicts have no cost. `cached_input` is for input tokens which
            the endpoint read from its cache; without it they cost as much as others. With it, tokens written to the
            cache cost 1.25 times `input`.
        label: Name of the judge model if two endpoints serve the same `model`.
        timeout_s: Time limit of one call.
        script: File with the steps of a `scripted` model, one JSON object per line.
        max_output_tokens: Maximum length of an answer, its thinking included. By default each request has what the form
            of its answer can need, at least 1024 tokens, and `thinking_tokens`. An answer that reaches the maximum is
            requested once more with twice as many.
        thinking_tokens: Tokens for the thinking of a reasoning model, besides its answer. By default 8192, until an
            answer shows that the model does not think.
        dialect: What a `decisions` endpoint speaks: `openai` (the default), to whose `base_url` `/decisions` is
            appended, or `systemone`, with `/systemone`.
        max_questions: Maximum number of questions in one request to a `decisions` endpoint; more are asked in several
            requests. By default 400.
        max_options: Maximum number of options of one question to a `decisions` endpoint. By default 255; some servers
            accept 208 or 26. `tracejudge doctor --ask` finds it out.
        backend: Where a `classifier` runs: `http` for a server, whose whole address `base_url` is, with `/predict` or
            `/classify`; `onnx` for a model in the worker, which needs the extra `local`.
        reasoning_effort: How much a reasoning model thinks, as the endpoint names it: `none`, `low`, `medium`, … If an
            endpoint refuses it and names another value, the nearest one is sent from then on.
        body: Further fields of each request, as the endpoint names them; none that TraceJudge sets, and no secret.
        headers: Further headers of each request, as `{ x-team = "search", x-token = { env = "TOKEN" } }` or
            `{ file = "/run/secrets/token" }`; none that TraceJudge sets, and no secret as a text.
        images: What a model gets of images that a trace names by their address: the `mark` that stands in the text (the
            default), or the `url`, from which the endpoint fetches them.
        path: Folder of a `classifier`: `judge.toml`, and for `onnx` `model.onnx` and `tokenizer.json`.
    """

    provider: str = "openai"
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
    thinking_tokens: int | None = None
    api_key_file: str | None = None
    allow_link_local: bool = False
    dialect: Dialect | None = None
    max_questions: int | None = None
    max_options: int | None = None
    backend: Backend | None = None
    path: str | None = None
    reasoning_effort: str | None = None
    body: dict[str, object] | None = None
    headers: Mapping[str, str | HeaderSource] | None = None
    images: Literal["mark", "url"] | None = None

    def __repr__(self) -> str:
        # The base URL may hold a password, and a header a token.
        return f"ModelSettings(provider={self.provider!r}, judge_model={self.judge_model!r})"

    @property
    def judge_model(self) -> str:
        """Name of this model in verdicts and metrics."""
        return self.label or self.model or self.provider

    @property
    def question_limit(self) -> int:
        """Maximum number of typed questions in one request."""
        return self.max_questions or 400

    @property
    def option_limit(self) -> int:
        """Maximum number of options of one typed question."""
        return self.max_options or 255


class Tool(Struct, frozen=True):
    """A function that a model may call; ``parameters`` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, object]


class ChatRequest(Struct, frozen=True):
    """One request to a judge model."""

    messages: tuple[Message, ...]
    schema_name: str
    schema: Mapping[str, object]
    # Returns the answer of the built-in lexical model, JSON or a text; endpoints never see it.
    heuristic: Callable[[], object]
    begins: Callable[[], object] | None = None  # Called by a model that queues requests each time it sends one.
    # The caller's list, to which a model that sends the request again adds the failed calls.
    failed: list[Call] = field(default_factory=list)
    tools: tuple[Tool, ...] = ()  # Tools that the messages refer to.
    may_call: bool = True  # Whether the model may call tools; otherwise it must answer, with structured output
    # Id of the evaluation, the same in all its rounds: an endpoint that refuses one evaluation again and again is not
    # down. Without it each request counts separately.
    evaluation: str = ""
    refusals: Refusals = Refusals()  # Refusals in earlier rounds.
    # Maximum number of tokens that the answer can need, without thinking; None if it is not bounded.
    max_output_tokens: int | None = None
    output_factor: int = 1  # Multiplies this bound and the allowance for thinking, after an answer that was cut off.
    temperature: float = 0.0
    questions: tuple[Question, ...] = ()  # Questions to a decision model; then the messages hold the material.
    # Called before each attempt by a model behind an endpoint's limiter. It may raise ``OverBudgetError``; what it
    # returns is called with the answer if its tokens are known, and with an empty one if nothing was paid for.
    admit: "Callable[[ChatRequest], Awaitable[Callable[[ChatResponse], object]]] | None" = None

    @property
    def offers_tools(self) -> bool:
        """Whether the model may call tools before it answers."""
        return self.may_call and bool(self.tools)


class ChatResponse(Struct, frozen=True):
    """One answer of a judge model."""

    text: str
    finish_reason: FinishReason = "stop"
    refusal: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # Of the input: read from a cache, and written to one.
    written_tokens: int = 0
    response_id: str | None = None
    model: str | None = None
    quota: Quota | None = None  # Remaining quota as reported by the endpoint
    # Duration of the answered request without its time in a queue; set by models that queue requests.
    took_s: float | None = None
    tool_calls: tuple[ToolCall, ...] = ()  # Calls that the model requests before it answers
    # JSON that the endpoint expects back with this answer (``Message.provider_state``).
    provider_state: Raw | None = None
    # Names from ``REPLY_FIELDS`` that were dropped because their values were out of bounds.
    invalid: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()  # One answer to each question, in their order; the text is then empty.
    elsewhere: tuple[tuple[str, str], ...] = ()  # If the text is empty: other places of the reply, and their texts.


@runtime_checkable
class ChatModel(Protocol):
    """A judge model, used by one event loop and by many coroutines concurrently."""

    settings: ModelSettings

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer one request; raises ``ModelError``."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


class CallObserver:
    """Callbacks for the calls of one model, made in its event loop: they must not block. By default they do nothing."""

    def ended(self, status: str, took_s: float) -> None:
        """Count a call; the status is ``ok``, ``cancelled`` or the reason of the failure."""

    def spent(self, judge: str, direction: Direction, tokens: int, cost_usd: float | None) -> None:
        """Count tokens, also of an evaluation without a verdict; no cost if the model has no price."""

    def dropped(self, field: str) -> None:
        """Count a field of a reply that was out of bounds."""


class ModelError(Exception):
    """There is no answer. The message contains no text of request, answer or key.

    ``retry_after_s`` is the delay requested by the endpoint, or the time until its circuit closes.
    """

    reason: ClassVar[Reason] = "judge_unavailable"
    quota: Quota | None = None  # Remaining quota as reported by the endpoint.
    took_s: float | None = None  # As in ``ChatResponse``.
    was_asked: bool = True  # False if no request was sent because the circuit is open.
    status: int | None = None  # The HTTP status, if there was a reply.
    message: str = ""  # Start of the endpoint's own message, without secrets and text of the request.
    refusals: Refusals = Refusals()  # Refusals of the evaluation, including this one if it counts.

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnscoredError(Exception):
    """The evaluation ends without a score, for a reason; ``error`` is the model's, if it raised one."""

    def __init__(self, reason: Reason, note: str, error: ModelError | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.note = note
        self.error = error


class RateLimitedError(ModelError):
    """The endpoint limits requests."""

    reason = "rate_limited"


class ModelTimeoutError(ModelError):
    """The endpoint did not answer in time."""

    reason = "timeout"


class ModelUnavailableError(ModelError):
    """The endpoint cannot be reached or failed."""

    reason = "judge_unavailable"


class ModelRejectedError(ModelError):
    """The endpoint denies access: key, payment, permission, model name or exhausted quota."""

    reason = "judge_rejected"


class BadModelRequestError(ModelError):
    """The endpoint accepts requests, but not this one."""

    reason = "bad_request"


class ToolsRefusedError(BadModelRequestError):
    """The endpoint does not support tools, or rejects these tools."""


class InputTooLongError(ModelError):
    """The request exceeds the model's context."""

    reason = "input_too_long"


class ContentFilteredError(ModelError):
    """The endpoint's content filter refuses the request."""

    reason = "content_filter"


class OverBudgetError(ModelError):
    """A budget refuses the request, which was not sent."""

    reason = "over_budget"
    was_asked = False
