"""Optional parts of the requests to one endpoint: structured output, temperature, the bound of the answer and others.

Each is sent until a request without it is answered if one with it was refused; no words of a refusal are known. Only
the names of the parts themselves are looked for in it, which saves a request. Until the first answer one request goes
ahead of the others, so that an endpoint refuses one request and not all of them.

The bound of an answer is what its form can need, because small models may never end an answer. A model that thinks
before it answers gets an allowance on top, until its first answer shows that it does not think. Limits that the
endpoint names are remembered.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

import httpx
import msgspec

from judges.core.model import (
    BadModelRequestError,
    ChatRequest,
    ChatResponse,
    ModelError,
    ModelSettings,
    ToolsRefusedError,
)
from judges.models.http import HttpEndpoint, Reply
from judges.models.provider import BOUNDS
from judges.models.reply_errors import read_fault, translated

DEFAULT_THINKING_TOKENS: Final = 8192
# Beginning or end of thoughts if a server leaves them, or a part of them, in the text.
_THOUGHTS: Final = (
    *("<think", "</think", "seed:think", "[THINK]", "[/THINK]", "<thought", "</thought", "<reasoning", "</reasoning"),
    *("_of_thought|>", "_THINKING|>", "think\u25b7", "<|channel", "<channel|>", "<unused94>", "<unused95>"),
)
_SLACK_TOKENS: Final = 64
_MIN_LIMIT: Final = 256
_CONTEXT: Final = re.compile(r"context (?:length|window|limit|size)")
_BOUND: Final = re.compile(rf"max_(?:completion_|output_)?tokens|(?:output|completion) tokens|{_CONTEXT.pattern}")
_TOO_MANY: Final = re.compile(r"too (?:large|long|many)|maximum|at most|exceed|limit|above|<=|>")
_INPUT_AND_CONTEXT: Final = re.compile(r"(\d{1,9}) \+ \d{1,9} > (\d{1,9})")


def is_about_bound(message: str) -> bool:
    """Return whether a complaint in lower case is about the size of an answer, or of the answer and the request."""
    return _BOUND.search(message) is not None and _TOO_MANY.search(message) is not None


class OutputBound:
    """The bound of answers from one endpoint."""

    def __init__(self, settings: ModelSettings, default_tokens: int | None = None) -> None:
        """Keep a default for an endpoint that requires a bound, if neither request nor settings have one."""
        self._settings = settings
        self.default_tokens = default_tokens
        self._thinks: bool | None = None  # None until an answer shows it.
        self._limit: int | None = None  # The largest bound that the endpoint accepts, if it named one.

    def tokens(self, request: ChatRequest) -> int | None:
        """Return the bound of one request, thinking included; the default if neither request nor settings have one."""
        tokens = self._settings.max_output_tokens
        if tokens is None and request.max_output_tokens is not None:
            thinking = self._settings.thinking_tokens
            if thinking is None:
                thinking = 0 if self._thinks is False else DEFAULT_THINKING_TOKENS
            tokens = request.max_output_tokens + thinking
        tokens = self.default_tokens if tokens is None else tokens
        if tokens is None:
            return None
        tokens *= request.output_factor
        return tokens if self._limit is None else min(tokens, self._limit)

    def learn(self, response: ChatResponse, *, shows_thinking: bool) -> None:
        """Learn from an answer whether the model thinks. One that thought once may do so again."""
        text = response.text
        # No tokenizer makes more tokens than bytes: the others were spent on thoughts that are not shown.
        is_whole = not response.tool_calls and not response.refusal
        if (
            shows_thinking
            or any(mark in text for mark in _THOUGHTS)
            or (response.finish_reason == "length" and not text.strip())
            or (is_whole and response.output_tokens > len(text.encode("utf-8", "replace")) + _SLACK_TOKENS)
        ):
            self._thinks = True
        elif self._thinks is None and text.strip():
            self._thinks = False

    def smaller(self, message: str, refused: int) -> int | None:
        """Read a smaller bound from a complaint about the refused one; None if it names none."""
        sizes = _INPUT_AND_CONTEXT.search(message)
        if sizes is not None:
            room = int(sizes[2]) - int(sizes[1])
            return room if 0 < room < refused else None
        if _CONTEXT.search(message) is not None:
            return None
        # The other numbers are the refused bound, and parts of names.
        limits = [int(number) for number in re.findall(r"\d{1,9}", message)]
        self._limit = max((limit for limit in limits if _MIN_LIMIT <= limit < refused), default=self._limit)
        return self._limit


Parts = dict[str, object]
# Requests that are answered or refused alike: the form of the answer, and the names of all fields and options.
_Kind = tuple[str, ...]
_Scope = tuple[_Kind | None, str]  # An option in requests of one kind; None for all kinds.
_WORD: Final = re.compile(r"[a-z_]+")
MAX_EXTRA: Final = 4  # Requests that are sent again without options, for a model and process, within one attempt.
# The number of them that may fail at a failing endpoint, so that it can still be understood afterwards.
_MAX_FAILED_FOR_FAULTS: Final = 2
# An endpoint checks a request before it answers it: one that is not refused by then is answered, or hangs.
_PATIENCE_S: Final = 2.0
_MAX_IN_ROW: Final = 3  # So many refusals in a row of what was answered before: the endpoint has changed.
_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_EFFORT: Final = re.compile(rf"['\"`]({'|'.join(_EFFORTS)})['\"`]")
# Without quotation marks an effort is a value only behind such a word or sign: others say that it is too high.
_PLAIN_EFFORT: Final = re.compile(
    rf"(?:\b(?:to|be|use|are|of|or|and|supports?) |[=:,|/(\[] ?)({'|'.join(_EFFORTS)})\b(?![-_])"
)
_SWITCH: Final = re.compile(r"\b(enable_thinking)\b.{0,40}\b(?:be|to) ['\"`]?(true|false)\b")

_MAX_SCHEMAS: Final = 1_000  # A judge has one, or one for each number of sentences.


def without_patterns(schema: Mapping[str, object]) -> dict[str, object]:
    """Copy a schema without the patterns of its texts, which not every endpoint supports."""
    return {
        key: without_patterns(value) if isinstance(value, Mapping) else value
        for key, value in schema.items()
        if key != "pattern" or not isinstance(value, str)
    }


class SchemaOptions:
    """The options of requests that name the schema of the answer, made and encoded once for each schema.

    Without the patterns of its texts the schema is the field ``name``; where it has some, the option `key_patterns`
    replaces that field.
    """

    def __init__(self, name: str, form: Callable[[ChatRequest, Mapping[str, object]], object]) -> None:
        """Make the options of one endpoint; ``form`` returns the field of a request with a schema."""
        self._name = name
        self._form = form
        # By identity, with the schema itself, so that no other one gets its identity.
        self._made: dict[tuple[str, int], tuple[Mapping[str, object], Mapping[str, Parts]]] = {}

    def options(self, request: ChatRequest) -> Mapping[str, Parts]:
        """Return the options of a request by their names."""
        key = request.schema_name, id(request.schema)
        if key not in self._made:
            if len(self._made) >= _MAX_SCHEMAS:
                self._made.clear()
            plain = without_patterns(request.schema)
            forms = (
                {self._name: plain} if plain == request.schema else {self._name: plain, "key_patterns": request.schema}
            )
            encoded: dict[str, Parts] = {
                option: {self._name: msgspec.Raw(msgspec.json.encode(self._form(request, schema)))}
                for option, schema in forms.items()
            }
            self._made[key] = request.schema, encoded
        return self._made[key][1]


class Asked(NamedTuple):
    """One request, whose optional parts may be left out."""

    request: ChatRequest
    body: Mapping[str, object]  # Fields that every endpoint accepts, and those the operator demands.
    options: dict[str, Parts]  # By name what each adds or replaces, without the bound of the answer.


class _Refusal(NamedTuple):
    error: ModelError
    may_be_ours: bool  # Whether an optional part may be the cause.
    sent: Sequence[str]
    named: frozenset[str]  # Optional parts whose names are in the complaint.
    demand: Mapping[str, object]  # Fields with the values that it asks for.


class Options:
    """The options that one endpoint accepts. Use it from one event loop."""

    def __init__(self, endpoint: HttpEndpoint, output: OutputBound, instead_of: Mapping[str, str]) -> None:
        """Send the options that ``instead_of`` names only when another one of the same request is refused."""
        self._endpoint = endpoint
        self._output = output
        self._instead_of = instead_of
        self._bounds = [name for name in BOUNDS if name == "max_tokens" or name in instead_of]
        self._required = frozenset() if output.default_tokens is None else frozenset(BOUNDS)
        self._extra = MAX_EXTRA
        self._refused: set[_Scope] = set()
        self._doubted: dict[_Scope, None] = {}  # Left out until a request with one of them succeeds.
        self._answered: set[str] = set()
        self._settled: set[_Kind] = set()  # Kinds that are answered with all that is neither refused nor doubted.
        # Fields that the endpoint demands, with and without tools.
        self._demanded: dict[bool, dict[str, object]] = {}
        self._refusals_in_row = self._failed_for_faults = 0
        self._leader: Asked | None = None
        self._turn: asyncio.Future[None] | None = None  # Ends with the leader's request.

    async def post(self, asked: Asked) -> Reply:
        """Send one request, again without what the endpoint refuses, or raise ``ModelError``."""
        options = self._offered(asked)
        kind = asked.request.schema_name, *asked.body, *options
        refusal: _Refusal | None = None
        try:
            while True:
                if kind not in self._settled and self._leader is not asked:
                    await self._wait_for_turn(asked, kind)
                    options = self._offered(asked)
                doubted = [name for scope, name in self._doubted if scope in (None, kind) and name in options]
                trial = doubted[0] if doubted and self._extra and self._leader is asked else None
                allowed = frozenset({trial} if trial else ())
                if refusal is None or refusal.sent != self._chosen(kind, options, allowed):
                    answer = await self._send(asked, kind, options, allowed)
                    if isinstance(answer, Reply):
                        return answer
                    refusal = answer
                    self._refusals_in_row += refusal.may_be_ours
                    has_changed = refusal.named or refusal.demand or self._refusals_in_row >= _MAX_IN_ROW
                    if not refusal.may_be_ours or (kind in self._settled and not has_changed):
                        raise refusal.error
                    self._settled.discard(kind)
                    if self._leader is not asked:
                        if not isinstance(refusal.error, BadModelRequestError):
                            raise refusal.error  # A failing endpoint gets no second request within an attempt.
                        continue
                return await self._learn(asked, kind, refusal, trial)
        finally:
            if self._leader is asked and self._turn is not None:
                self._turn.set_result(None)
                self._leader = self._turn = None

    async def _wait_for_turn(self, asked: Asked, kind: _Kind) -> None:
        """Wait while another request learns what the endpoint accepts; then this one does, if it is not known yet."""
        while self._turn is not None and kind not in self._settled:
            done, _ = await asyncio.wait([self._turn], timeout=_PATIENCE_S)
            if not done:
                return
        if kind not in self._settled:
            self._leader, self._turn = asked, asyncio.get_running_loop().create_future()

    async def _learn(self, asked: Asked, kind: _Kind, first: _Refusal, trial: str | None) -> Reply:
        """Learn from a refusal which parts the endpoint refuses or demands."""
        sent = [name for name in first.sent if name not in self._required]
        unknown = [name for name in sent if name not in self._answered]
        suspects = unknown or sent
        # The bound is left out last, because an endpoint may require it.
        has_others = not trial and any(name not in BOUNDS for name in suspects)
        bound = [name for name in suspects if name in BOUNDS and has_others]
        rest = [name for name in suspects if name not in bound]
        is_fault = not isinstance(first.error, BadModelRequestError)
        culprits = [trial] if trial else rest if unknown and len(rest) == 1 and not is_fault else []
        doubts: list[_Scope] = [] if trial else [(None if unknown else kind, name) for name in rest]
        # Requests that wait no longer leave them out meanwhile.
        self._doubted.update(dict.fromkeys(doubts))
        refusal, without, offered = first, frozenset[str](), frozenset(self._offered(asked))
        demands: list[Mapping[str, object]] = [{}]
        while self._extra and not (is_fault and self._failed_for_faults >= _MAX_FAILED_FOR_FAULTS):
            demand = {} if trial or refusal.demand in demands else refusal.demand
            named = frozenset() if trial or demand else refusal.named - without - self._required
            is_bare = not (demand or named)
            if is_bare and (isinstance(first.error, ToolsRefusedError) or self._required.issuperset(refusal.sent)):
                break
            self._extra -= 1
            without |= named
            options = self._offered(asked)
            allowed, left_out = (frozenset(), without.intersection(bound)) if is_bare else (offered - without, without)
            answer = await self._send(asked, kind, options, allowed, without=left_out, demand=demand)
            if isinstance(answer, Reply):
                self._demanded.setdefault("tools" in asked.body, {}).update(demand)
                for name in (*left_out, *(culprits if is_bare else ())):
                    scope = kind if name in self._answered else None
                    self._refused.add((scope, name))
                    fallbacks = [new for new, old in self._instead_of.items() if old == name not in left_out]
                    self._doubted.update(dict.fromkeys((scope, new) for new in fallbacks))
                    self._doubted.pop((scope, name), None)
                return answer
            self._failed_for_faults += is_fault
            if not answer.may_be_ours:
                raise answer.error
            if is_bare and not bound:
                break
            if is_bare:
                doubts += [(None if unknown else kind, name) for name in bound]
                self._doubted.update(dict.fromkeys(doubts))
                culprits, bound, offered = bound, [], frozenset()
            refusal, demands = answer, [*demands, demand]
        self._doubted = {doubt: None for doubt in self._doubted if doubt not in doubts}
        raise first.error

    async def _send(
        self,
        asked: Asked,
        kind: _Kind,
        options: Mapping[str, Parts],
        allowed: AbstractSet[str],
        *,
        without: AbstractSet[str] = frozenset(),
        demand: Mapping[str, object] | None = None,
    ) -> Reply | _Refusal:
        """Send a request once, and again only with a smaller bound that the endpoint names."""
        is_first = True
        while True:
            names = self._chosen(kind, options, allowed, without)
            whole = dict(asked.body)
            for name in names:
                whole |= options[name]
            whole |= {**self._demanded.get("tools" in asked.body, {}), **(demand or {})}
            reply = await self._endpoint.post(msgspec.json.encode(whole))
            if reply.status == httpx.codes.OK:
                break
            fault = read_fault(reply.body)
            complaint = f"{fault.param or ''} {fault.message}"[:500].lower()
            error = translated(reply, fault, asked.body, self._endpoint, with_tools=bool(asked.request.tools))
            bounds = [value for name, value in whole.items() if name in BOUNDS and isinstance(value, int)]
            if is_first and bounds and reply.status in {400, 413, 422} and is_about_bound(complaint):
                smaller = self._output.smaller(complaint, bounds[0])
                # Without a bound the rest of the context is one.
                if smaller is not None or not self._required:
                    options, is_first = self._offered(asked, smaller), False
                    continue
            # A failing endpoint must say something.
            is_fault = httpx.codes.is_server_error(reply.status)
            is_cause = bool(complaint.strip()) if is_fault else isinstance(error, BadModelRequestError)
            may_be_ours = is_cause and reply.status in {400, 422, 500, 501}
            words = frozenset(_WORD.findall(complaint)) - asked.body.keys()
            named = frozenset(name for name in names if not words.isdisjoint({name, *options[name]}))
            demanded = {field: value for field, value in _demand(complaint, whole).items() if field not in asked.body}
            return _Refusal(error, may_be_ours, names, named, demanded)
        self._refusals_in_row = 0
        if kind not in self._settled:
            self._answered.update(names)
            self._doubted = {key: None for key in self._doubted if key[0] not in (None, kind) or key[1] not in names}
            has_doubts = any(scope in (None, kind) and name in options for scope, name in self._doubted)
            if not (has_doubts and self._extra):
                self._settled.add(kind)
        return reply

    def _offered(self, asked: Asked, *smaller: int | None) -> Mapping[str, Parts]:
        """Return all options, the bound's included."""
        (tokens,) = smaller or (self._output.tokens(asked.request),)
        return asked.options if tokens is None else asked.options | {name: {name: tokens} for name in self._bounds}

    def _chosen(
        self,
        kind: _Kind,
        options: Mapping[str, Parts],
        allowed: AbstractSet[str],
        without: AbstractSet[str] = frozenset(),
    ) -> list[str]:
        """Choose the options of a request: none that is refused, and of those in doubt only what is allowed."""
        left: AbstractSet[str] = options.keys()
        if without or self._refused:
            left = {name for name in left - without if self._refused.isdisjoint({(None, name), (kind, name)})}
        return [
            name
            for name in options
            if name in left
            and self._instead_of.get(name) not in left
            and (not self._doubted or name in allowed or self._doubted.keys().isdisjoint({(None, name), (kind, name)}))
        ]


def _demand(complaint: str, whole: Mapping[str, object]) -> Mapping[str, object]:
    """Read which value a refusal asks for; only of fields that say how much the model thinks."""
    if match := _SWITCH.search(complaint):
        return {match[1]: match[2] == "true"}
    if "reasoning_effort" not in complaint:
        return {}
    now = whole.get("reasoning_effort")
    named = _EFFORT.findall(complaint) or _PLAIN_EFFORT.findall(complaint)
    allowed = [effort for effort in _EFFORTS if effort in named and effort != now]
    if not allowed and "tools" in whole and now != "none":
        allowed = ["none"]
    rank = _EFFORTS.index(now) if now in _EFFORTS else 0
    nearest = sorted(allowed, key=lambda effort: abs(_EFFORTS.index(effort) - rank))
    return {"reasoning_effort": nearest[0]} if nearest else {}
