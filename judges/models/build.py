"""Make a chat model from its settings, and say in one sentence what is wrong with settings that make none."""

import math
from collections.abc import Mapping

import httpx

from judges.models.anthropic import PUBLIC_URL, AnthropicModel
from judges.models.http import is_endpoint
from judges.models.lexical import LexicalModel
from judges.models.model import ChatModel, ModelSettings
from judges.models.openai import OpenAIModel
from judges.models.scripted import ScriptedModel, load_script

__all__ = ["ModelSettingsError", "build", "check"]


class ModelSettingsError(ValueError):
    """The settings of a model cannot serve; the message names the key and the mend."""


def check(settings: ModelSettings) -> None:
    """Check what one field alone cannot show: the one place for the bounds of a model.

    Raises:
        ModelSettingsError: With the key and the mend.
    """
    _check_amounts(settings)
    if settings.provider == "scripted" and not settings.script:
        raise ModelSettingsError("script: a scripted model needs a file with its steps")
    if settings.provider in {"openai", "anthropic"}:
        _check_endpoint(settings)


def build(settings: ModelSettings, environment: Mapping[str, str]) -> ChatModel:
    """Make the model; the key is taken from ``environment`` under ``api_key_env``.

    Raises:
        ModelSettingsError: The settings or the variable they name do not serve.
    """
    check(settings)
    if settings.provider == "lexical":
        return LexicalModel(settings)
    if settings.provider == "scripted":
        try:
            return ScriptedModel(load_script(settings.script or ""), settings)
        except (OSError, ValueError) as error:
            raise ModelSettingsError(f"script: {error}") from error
    key = _key(settings, environment)
    return AnthropicModel(settings, key) if settings.provider == "anthropic" else OpenAIModel(settings, key)


def _check_amounts(settings: ModelSettings) -> None:
    if settings.max_in_flight < 1:
        raise ModelSettingsError("max_in_flight: must be at least 1")
    if not 0 < settings.timeout_s < math.inf:
        raise ModelSettingsError("timeout_s: must be more than 0")
    if settings.max_input_tokens < 1:
        raise ModelSettingsError("max_input_tokens: must be at least 1")
    if settings.max_output_tokens is not None and settings.provider != "anthropic":
        raise ModelSettingsError("max_output_tokens: goes with the provider anthropic alone; take it out")
    if settings.max_output_tokens is not None and settings.max_output_tokens < 1:
        raise ModelSettingsError("max_output_tokens: must be at least 1")
    if settings.price and not all(0 <= usd < math.inf for usd in (settings.price.input, settings.price.output)):
        raise ModelSettingsError("price: must be USD per million tokens, 0 or more")


def _check_endpoint(settings: ModelSettings) -> None:
    if not settings.model:
        raise ModelSettingsError("model: say which model the endpoint shall use")
    base_url = settings.base_url or (PUBLIC_URL if settings.provider == "anthropic" else "")
    if not base_url:
        raise ModelSettingsError('base_url: say where the endpoint is, as "https://host/v1"')
    if not is_endpoint(base_url):
        raise ModelSettingsError('base_url: must be http:// or https:// and a host, as "https://host/v1"')
    if settings.api_key_env is None and httpx.URL(base_url).host == httpx.URL(PUBLIC_URL).host:
        raise ModelSettingsError(
            f"api_key_env: {PUBLIC_URL} asks for a key; name the variable that holds it, as ANTHROPIC_API_KEY"
        )


def _key(settings: ModelSettings, environment: Mapping[str, str]) -> str | None:
    if settings.api_key_env is None:
        return None
    key = environment.get(settings.api_key_env)
    if not key or key.isspace():
        raise ModelSettingsError(
            f"api_key_env: the variable {settings.api_key_env} is not set; export it, or leave the line out"
        )
    if not (key.isascii() and key.isprintable()):
        # Found here, because the client's own error comes with each request and quotes the header.
        raise ModelSettingsError(
            f"api_key_env: the variable {settings.api_key_env} holds a line break or another sign that no HTTP header"
            " may hold; take it out"
        )
    return key
