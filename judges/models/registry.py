"""The registry of providers: the only place that knows them by name.

docs/changing.md says what a new provider needs.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import structs

from judges.core.decision import Calibration
from judges.core.judge import BYTES_PER_TOKEN, Judge
from judges.core.model import ChatModel, ChatRequest, ModelKind, ModelSettings
from judges.core.prompt import Message
from judges.models.credentials import HEADER_NAME
from judges.models.provider import ANTHROPIC_URL, BOUNDS, ModelSettingsError, Provider
from tracejudge.content.redact import is_secret_name, redact_credentials

__all__ = ["PROVIDERS", "ModelSettingsError", "build", "check", "find", "known_model", "known_models"]

# Settings of the providers whose endpoints bound an answer.
_OUTPUT_SETTINGS: Final = frozenset({"max_output_tokens", "thinking_tokens", "body", "headers", "images"})
PROVIDERS: Final[dict[str, Provider]] = {
    "openai": Provider(
        "judges.models.openai",
        has_probe=True,
        own_settings=_OUTPUT_SETTINGS | {"reasoning_effort"},
        request_paths=("/chat/completions",),
        hosted={"base_url": "https://api.openai.com/v1", "api_key_env": "OPENAI_API_KEY"},
    ),
    "anthropic": Provider(
        "judges.models.anthropic",
        has_probe=True,
        own_settings=_OUTPUT_SETTINGS,
        request_paths=("/v1/messages",),
        default_url=ANTHROPIC_URL,
        key_hosts={"api.anthropic.com": "ANTHROPIC_API_KEY"},
        hosted={"api_key_env": "ANTHROPIC_API_KEY"},
    ),
    "decisions": Provider(
        "judges.models.decisions",
        has_probe=True,
        kind="decisions",
        own_settings=frozenset({"dialect", "max_questions", "max_options", "headers"}),
        request_paths=("/decisions", "/systemone"),
    ),
    "classifier": Provider(
        "judges.models.classifier",
        has_check=True,
        has_probe=True,
        kind="classifier",
        own_settings=frozenset({"backend", "path", "headers"}),
    ),
    "lexical": Provider("judges.models.lexical", is_heuristic=True),
    "scripted": Provider("judges.models.scripted", has_check=True),
}

# Addresses with the API of OpenAI, by names that users give as a provider.
_COMPATIBLE: Final[Mapping[str, str]] = {
    "azure": "https://RESOURCE.openai.azure.com/openai/v1",
    "bedrock": "https://bedrock-runtime.REGION.amazonaws.com/openai/v1",
    **dict.fromkeys(("gemini", "google"), "https://generativelanguage.googleapis.com/v1beta/openai"),
    "groq": "https://api.groq.com/openai/v1",
    "litellm": "http://localhost:4000/v1",
    "llamacpp": "http://localhost:8080/v1",
    "lmstudio": "http://localhost:1234/v1",
    "mistral": "https://api.mistral.ai/v1",
    "ollama": "http://localhost:11434/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "vllm": "http://localhost:8000/v1",
}
# Fields of a request that TraceJudge sets.
_OURS: Final = frozenset({
    "model", "messages", "system", "temperature", "response_format", "output_config", "tools", "tool_choice", "stream",
    "reasoning_effort", *BOUNDS,
})  # fmt: skip
# Headers that TraceJudge or the connection sets, and those that carry a key.
_OUR_HEADERS: Final = frozenset({
    "accept", "accept-encoding", "anthropic-version", "connection", "content-length", "content-type", "expect", "host",
    "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "user-agent",
})  # fmt: skip
_LOGINS: Final = frozenset({"authorization", "x-api-key"})
_SECRET_HEADER: Final = re.compile("cookie|key|token|secret|credential|auth")
_MAKER_AND_DATE: Final = re.compile(r".*[/:]|-20\d\d-?\d\d-?\d\d$")


@cache
def known_models() -> Mapping[str, Mapping[str, Any]]:
    """Read the table of models by name: provider, price, end; defaults, examples and checks use it."""
    return tomllib.loads(Path(__file__).with_name("known.toml").read_text(encoding="utf-8"))


def known_model(name: str) -> Mapping[str, Any]:
    """Find a model in the table, else nothing, also with a maker before its name or a date behind it."""
    return known_models().get(_MAKER_AND_DATE.sub("", name.lower()), {})


_LEAST: Final[Mapping[str, int]] = {
    **dict.fromkeys(("max_in_flight", "max_input_tokens", "max_output_tokens", "max_questions"), 1),
    "thinking_tokens": 0,
    "max_options": 2,
}


def find(settings: ModelSettings) -> Provider:
    """Find the provider that the settings name, or raise ``ModelSettingsError``."""
    if settings.provider not in PROVIDERS:
        names = ", ".join(sorted(PROVIDERS))
        url = _COMPATIBLE.get(re.sub(r"[\W_]|openai|ai$", "", settings.provider.lower()))
        fix = f'set provider = "openai", base_url = "{url}"' if url else "most endpoints are openai, with a base_url"
        raise ModelSettingsError(f"provider: must be one of {names}; {fix}")
    return PROVIDERS[settings.provider]


def model_kind(settings: ModelSettings) -> ModelKind:
    """Return what a model answers; `chat` if its provider is unknown, which ``check`` reports."""
    return PROVIDERS[settings.provider].kind if settings.provider in PROVIDERS else "chat"


def decides(settings: ModelSettings) -> bool:
    """Return whether a model answers typed questions with probabilities, and generates no text."""
    return model_kind(settings) != "chat"


def is_heuristic(settings: ModelSettings) -> bool:
    """Return whether a fixed program answers in place of a model, without an endpoint and without cost."""
    return settings.provider in PROVIDERS and PROVIDERS[settings.provider].is_heuristic


def judge_for(judge: Judge, settings: ModelSettings, calibrations: Mapping[str, Calibration] = {}) -> Judge:
    """Return the form of the judge that a model is asked in: itself, or its form with typed questions.

    The calibrations, by metric, were fitted for this model; only models that return probabilities use them.
    ``ValueError`` if the model answers typed questions only, and the judge has none that it can answer.
    """
    if judge.run is not None or not decides(settings):
        return judge
    form = judge.decision_form
    if form is not None and model_kind(settings) == "classifier" and not form.has_pairs:
        raise ValueError(f"{judge.name} cannot be asked of a classifier: its questions are not about text pairs")
    if form is not None and form.options > settings.option_limit:
        limit = f"max_options = {settings.option_limit} of {settings.judge_model}"
        raise ValueError(f"{judge.name} asks for one of {form.options} options, more than {limit}")
    return judge.for_decisions(calibrations)


def most_tokens(request: ChatRequest, settings: ModelSettings) -> tuple[int, int]:
    """Estimate the tokens of a request and the most of its answer, without thinking unless `thinking_tokens` is set."""
    from judges.requests.request import size_bytes  # noqa: PLC0415 - it takes asyncio, which `init` need not load

    # A classifier is sent the pairs alone. Each question takes as much besides its text as a message.
    pairs = model_kind(settings) == "classifier"
    asked = [
        Message("user", "".join(one.pair or () if pairs else (one.instructions, *chain.from_iterable(one.options))))
        for one in request.questions
    ]
    size = size_bytes(asked if pairs else (*request.messages, *asked)) + sum(len(str(tool)) for tool in request.tools)
    answer = request.max_output_tokens or 1024
    output = settings.max_output_tokens or answer + (settings.thinking_tokens or 0)
    return math.ceil(size / BYTES_PER_TOKEN), output * request.output_factor


def check(settings: ModelSettings) -> None:
    """Check what the type of one setting cannot express, or raise ``ModelSettingsError``."""
    provider = find(settings)
    for name, least in _LEAST.items():
        value = getattr(settings, name)
        if value is not None and value < least:
            raise ModelSettingsError(f"{name}: must be at least {least}")
    if not 0 < settings.timeout_s < math.inf:
        raise ModelSettingsError("timeout_s: must be more than 0")
    for name in sorted(frozenset().union(*(each.own_settings for each in PROVIDERS.values())) - provider.own_settings):
        if getattr(settings, name) is not None:
            owners = " or ".join(owner for owner, each in PROVIDERS.items() if name in each.own_settings)
            raise ModelSettingsError(f"{name}: goes with the provider {owners} alone; take it out", "conflict")
    if settings.price and not all(usd is None or 0 <= usd < math.inf for usd in structs.astuple(settings.price)):
        fix = "must be USD per million tokens, 0 or more, as { input = 0.10, output = 0.50 }"
        raise ModelSettingsError(f"price: {fix}")
    _check_body("body", settings.body)
    provider.check(settings)
    named = _check_headers(settings)
    path = urlsplit(settings.base_url or "").path.rstrip("/") if provider.request_paths else ""
    for ending in (ending for each in PROVIDERS.values() for ending in each.request_paths if path.endswith(ending)):
        raise ModelSettingsError(f"base_url: must end before {ending}, which each request adds; remove that part")
    if provider.has_probe and settings.api_key_env is None and settings.api_key_file is None and not named & _LOGINS:
        host = urlsplit(settings.base_url or provider.default_url).hostname or ""
        variable = next((each.key_hosts[host] for each in PROVIDERS.values() if host in each.key_hosts), None)
        if variable is not None:
            fix = f"name the variable that holds it, as {variable}"
            raise ModelSettingsError(f"api_key_env: https://{host} requires a key; {fix}", "missing-key")


def _check_body(path: str, value: object) -> None:
    """Check that further fields, nested ones included, replace none of ours and hold no secret."""
    if path.removeprefix("body.") in _OURS:
        raise ModelSettingsError(f"{path}: TraceJudge sets this field; take it out of body", "conflict")
    if isinstance(value, str) and _is_secret(path.rpartition(".")[2], value):
        message = f"{path}: holds a secret; name the variable with the key in api_key_env"
        raise ModelSettingsError(message, "secret-in-file")
    for key, each in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        _check_body(f"{path}.{key}", each)


def _check_headers(settings: ModelSettings) -> set[str]:
    """Check that further headers are valid, replace none of ours and hold no secret; return their names."""
    has_login = settings.api_key_env or settings.api_key_file or "@" in urlsplit(settings.base_url or "").netloc
    taken = set[str]()
    for name, value in (settings.headers or {}).items():
        key, lower = f"headers.{name}", name.lower()
        if HEADER_NAME.fullmatch(name) is None:
            raise ModelSettingsError(f"headers: {name!r} is no name of a header; use letters, digits and -")
        if lower in _OUR_HEADERS or lower in taken or (has_login and lower in _LOGINS):
            raise ModelSettingsError(f"{key}: is set already; take it out", "conflict")
        if isinstance(value, str) and (_SECRET_HEADER.search(lower) or _is_secret(lower, value)):
            fix = 'name its place, as { env = "VARIABLE" } or { file = "PATH" }'
            raise ModelSettingsError(f"{key}: holds a secret; {fix}", "secret-in-file")
        if isinstance(value, str) and not (value.strip() == value != "" and value.isascii() and value.isprintable()):
            raise ModelSettingsError(f"{key}: must be printable ASCII without blanks at its ends")
        taken.add(lower)
    return taken


def _is_secret(name: str, value: str) -> bool:
    return is_secret_name(name) or redact_credentials(value, value.encode("utf-8", "replace")) != value


def build(settings: ModelSettings, environment: Mapping[str, str], proxy: str | None = None) -> ChatModel:
    """Make the model, with its key from the environment or a file, or raise ``ModelSettingsError``."""
    check(settings)
    return find(settings).make(settings, environment, proxy)
