"""Make a chat model from its settings, and say in one sentence what is wrong with settings that make none."""

import math
from collections.abc import Mapping

import httpx

from judges.models.addresses import is_guarded
from judges.models.anthropic import PUBLIC_URL, AnthropicModel
from judges.models.http import is_endpoint
from judges.models.key import KeyRefusedError, read_key
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
    """Make the model; the key is taken from ``environment`` under ``api_key_env``, or from ``api_key_file``.

    Raises:
        ModelSettingsError: The settings, or the variable or file they name, do not serve.
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
    if is_guarded(httpx.URL(base_url).host) and not settings.allow_link_local:
        raise ModelSettingsError(
            "base_url: is a link-local, metadata or unspecified address, where no judge model belongs; if this one"
            " does, set allow_link_local = true"
        )
    _check_key(settings, httpx.URL(base_url).host)


def _check_key(settings: ModelSettings, host: str) -> None:
    if settings.api_key_env is not None and settings.api_key_file is not None:
        raise ModelSettingsError("api_key_file: goes in place of api_key_env, not beside it; take one of them out")
    if settings.api_key_env is None and settings.api_key_file is None and host == httpx.URL(PUBLIC_URL).host:
        raise ModelSettingsError(
            f"api_key_env: {PUBLIC_URL} asks for a key; name the variable that holds it, as ANTHROPIC_API_KEY"
        )


def _key(settings: ModelSettings, environment: Mapping[str, str]) -> str | None:
    try:
        return read_key(settings, environment)
    except KeyRefusedError as error:
        raise ModelSettingsError(str(error)) from None
