"""Checks of HTTP endpoints: the models, and the settings of the worker's own metrics page.

A model's endpoint is asked for its list of models, which costs nothing. Requests are sent as the worker sends them:
through its proxy, without redirects, and to no guarded address.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Final

import httpx
import msgspec
from msgspec import Struct, structs

from judges.core.decision import Option, Question
from judges.core.model import BadModelRequestError, ChatModel, ChatRequest, ChatResponse, ModelError, ModelSettings
from judges.core.prompt import Message
from judges.core.verdict import with_message
from judges.models.credentials import (
    AddressRefusedError,
    KeyRefusedError,
    ProxyRefusedError,
    proxy_for,
    read_headers,
    read_key,
)
from judges.models.http import HttpEndpoint, Reply, ReplyTooLongError
from judges.models.registry import PROVIDERS, ModelSettingsError, build, check, decides, model_kind
from judges.models.reply_errors import content_type, quote_message, read_fault
from tracejudge.redis_url import mask_url
from worker.base.doctor.finding import SLOW_MODEL, Finding, broken, cause_of, chain, misconfigured, ok, warning
from worker.core.config.serving import Listen, Tls
from worker.core.config.settings import Settings, SettingsError
from worker.core.telemetry.http_server import HttpAuth

_TIMEOUT_S: Final = 4.0
# This is longer than for any other part, because some models reason before they answer.
ASK_S: Final = 30.0
_QUESTION: Final = ChatRequest(
    messages=(Message("user", 'Answer with this JSON object and nothing else: {"result": "yes"}'),),
    schema_name="answer",
    schema={
        "type": "object",
        "properties": {"result": {"type": "string", "enum": ["yes", "no"]}},
        "required": ["result"],
        "additionalProperties": False,
    },
    heuristic=lambda: {"result": "yes"},
)
# For models that answer typed questions.
_DECISION: Final = ChatRequest(
    messages=(Message("user", "The lamp is on."),),
    schema_name="answer",
    schema={},
    heuristic=dict,
    questions=(Question("predicate", "The lamp is on.", pair=("The lamp is on.", "The lamp is on.")),),
)
_UNANSWERED: Final = {
    "decisions": "check `dialect`, and whether the model decides",
    "classifier": "check judge.toml: `task`, `labels`, `support`, and `text` with `text_pair`",
}


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


def endpoint(
    name: str, settings: ModelSettings, environment: Mapping[str, str], proxy: str | None = None
) -> Sequence[Finding]:
    """Check the key and the endpoint of `[models.NAME]`, and whether it lists the model."""
    part = f"model {name}"
    try:
        check(settings)
        provider = PROVIDERS[settings.provider]
        key = read_key(settings, environment)
        probe = provider.probe(settings, key)
        through = probe and proxy_for(probe.url, proxy)
        build(settings, environment, proxy)  # It opens the files that settings and environment name.
        if probe is None:
            return [ok(part, f"{settings.provider}, sends no requests")]
        url, headers = probe
    except ProxyRefusedError as error:
        return [broken(part, "the environment names a proxy that cannot be used", f"{error}")]
    except (ModelSettingsError, KeyRefusedError) as error:
        return [misconfigured(part, error)]
    # The client of a model does not serve here, because it sends only chat requests, which cost money.
    client = HttpEndpoint(
        url, headers, structs.replace(read_headers(settings, environment), timeout_s=_TIMEOUT_S), through
    )

    async def get() -> Reply:
        try:
            return await client.get()
        finally:
            await client.aclose()

    try:
        reply = asyncio.run(get())
    except ModelError as error:
        return [_no_reply(part, mask_url(url), error)]
    finding = _read(part, settings, reply, mask_url(url))
    text = quote_message(read_fault(reply.body).message, secrets=client.secrets)
    return [
        finding if reply.status == httpx.codes.OK else structs.replace(finding, what=with_message(finding.what, text))
    ]


def _no_reply(part: str, where: str, error: ModelError) -> Finding:
    links = [*chain(error)]
    if any(isinstance(link, ReplyTooLongError) for link in links):
        return ok(part, where)  # too long for a list of models
    if any(isinstance(link, AddressRefusedError) for link in links):
        fix = "correct base_url; if the endpoint is meant to be there, set allow_link_local = true"
        return broken(part, f"{where} leads to a link-local or metadata address, which is refused", fix)
    return broken(part, *cause_of(error, where, "the endpoint"))


def _read(part: str, settings: ModelSettings, reply: Reply, where: str) -> Finding:
    """Interpret the answer to the request for the list of models."""
    status = reply.status
    if status in {401, 402, 403}:
        fix = "name its key by api_key_env or api_key_file"
        if settings.api_key_file:
            fix = f"correct the key in the file {settings.api_key_file} (api_key_file)"
        elif settings.api_key_env:
            fix = f"correct the key in the variable {settings.api_key_env} (api_key_env)"
        return broken(part, f"{where} rejects the request: HTTP {status}", fix)
    if status in {404, 405, 501}:
        # Many gateways implement the chat request alone, so a missing list proves nothing.
        fix = "check the end of base_url, which is often /v1; `tracejudge doctor --ask` confirms it"
        return warning(part, f"{where} answers, but has no list of models: HTTP {status}", fix)
    if httpx.codes.is_redirect(status):
        # Workers follow no redirect, because it could lead a key or a trace to another host.
        return broken(part, f"{where} redirects: HTTP {status}", "set base_url to the address that it redirects to")
    if status == httpx.codes.TOO_MANY_REQUESTS:
        return warning(part, f"{where} asks for fewer requests: HTTP 429", "wait, or raise the limit of the account")
    if not httpx.codes.is_success(status):
        return broken(part, f"{where} fails: HTTP {status}", "see the status and the log of the endpoint")
    return _check_models(part, settings, reply, where)


def _check_models(part: str, settings: ModelSettings, reply: Reply, where: str) -> Finding:
    try:
        names = {model.id for model in msgspec.json.decode(reply.body, type=_Models).data}
    except (msgspec.DecodeError, UnicodeDecodeError):
        if (kind := content_type(reply)) is None:
            return ok(part, where)
        fix = "correct base_url, which often ends with /v1; `tracejudge doctor --ask` confirms it"
        return broken(part, f"{where} is not a chat endpoint: it answers with {kind}", fix)
    if names and settings.model not in names:
        fix = "correct `model`; if it is right, as with a deployment's name, `tracejudge doctor --ask` confirms it"
        return warning(part, f"{where} lists {len(names)} models, and not {settings.model}", fix)
    return ok(part, where)


def ask(
    name: str, settings: ModelSettings, environment: Mapping[str, str], proxy: str | None = None
) -> Sequence[Finding]:
    """Send the model of `[models.NAME]` one question, and report its cost."""

    async def answer() -> tuple[ChatResponse, int]:
        model = build(settings, environment, proxy)
        try:
            async with asyncio.timeout(ASK_S - 1):
                response = await model.complete(_DECISION if decides(settings) else _QUESTION)
                if model_kind(settings) != "decisions":
                    return response, settings.option_limit
                return await _most_options(model, response)
        finally:
            await model.aclose()

    part = f"answer of {name}"
    try:
        response, options = asyncio.run(answer())
    except ModelSettingsError:
        return []  # reported by the check of the endpoint
    except ModelError as error:
        fix = SLOW_MODEL if error.reason == "timeout" else "check base_url, model and key; its log says more"
        return [broken(part, with_message(str(error), error.message), fix)]
    except TimeoutError:
        return [broken(part, f"no answer within {ASK_S:g} s", SLOW_MODEL)]
    tokens = f"{response.input_tokens} tokens in, {response.output_tokens} out"
    if not response.input_tokens and not response.output_tokens:
        cost = "it reports no tokens, so the cost is unknown"
    elif settings.price is None:
        cost = f"{tokens}, no price configured"
    else:
        cost = f"{tokens}, {settings.price.cost_of(response):.6f} USD"
    if decides(settings) and (not response.decisions or response.decisions[0].problem is not None):
        return [broken(part, f"answers, but not the question; {cost}", _UNANSWERED[model_kind(settings)])]
    if options < settings.option_limit:
        fix = f"set max_options = {options}" if options > 1 else "take a model that answers choices"
        return [warning(part, f"answers, but refuses questions with more than {options} options; {cost}", fix)]
    text = f"answers, also questions with {options} options" if model_kind(settings) == "decisions" else "answers"
    return [ok(part, f"{text}; {cost}")]


async def _most_options(model: ChatModel, response: ChatResponse) -> tuple[ChatResponse, int]:
    """Find the most options up to `max_options` that an endpoint accepts, 1 if none; add the tokens of all answers."""
    accepted, refused = 1, model.settings.option_limit + 1
    # First the whole, then the limit that the error text may name and one more, then the middle of what is left.
    first = [model.settings.option_limit]
    while accepted < refused - 1:
        first = [number for number in first if accepted < number < refused]
        tried = first.pop(0) if first else (accepted + refused) // 2
        options = tuple(Option(str(number), f"the number {number}") for number in range(1, tried + 1))
        question = Question("choice", "Which number is the text about?", options)
        try:
            reply = await model.complete(structs.replace(_DECISION, questions=(question,)))
        except BadModelRequestError as error:
            refused = tried
            named = [int(number) for number in re.findall(r"\b\d{1,3}\b", error.message) if int(number) < refused]
            first = [max(named), max(named) + 1] if named and not first else first
        else:
            accepted = tried
            tokens = response.input_tokens + reply.input_tokens, response.output_tokens + reply.output_tokens
            response = structs.replace(response, input_tokens=tokens[0], output_tokens=tokens[1])
    return response, accepted


def page(settings: Settings, environment: Mapping[str, str]) -> Sequence[Finding]:
    """Read the token and the certificate of the metrics page as a worker does."""
    try:
        auth, tls = HttpAuth.from_settings(settings, environment), Tls.from_table(settings, "metrics_tls_").context()
    except SettingsError as error:
        return [misconfigured("metrics page", error)]
    if auth.scheme is None and not Listen.from_table(settings, "metrics_").is_local:
        fix = "set metrics_token_env, or restrict access by the rules of the network"
        return [warning("metrics page", f"everyone who reaches {settings.metrics_host} may read it", fix)]
    return [ok("metrics page", f"{auth.scheme or 'reachable from this machine only'}{', TLS' if tls else ''}")]
