"""The registry of providers: the only place that knows them by name.

A new provider is one file and one row; its own settings are fields of ``ModelSettings``.
"""

import math
from collections.abc import Mapping
from typing import Final

import httpx
from msgspec import structs

from judges.core.model import ChatModel, ModelSettings
from judges.models import anthropic, classifier, decisions, lexical, openai, scripted
from judges.models.provider import ModelSettingsError, Provider

__all__ = ["PROVIDERS", "ModelSettingsError", "build", "check", "find"]

PROVIDERS: Final[dict[str, Provider]] = {
    "openai": openai.PROVIDER,
    "anthropic": anthropic.PROVIDER,
    "decisions": decisions.PROVIDER,
    "classifier": classifier.PROVIDER,
    "lexical": lexical.PROVIDER,
    "scripted": scripted.PROVIDER,
}


_LEAST: Final[Mapping[str, int]] = {
    "max_in_flight": 1,
    "max_input_tokens": 1,
    "max_output_tokens": 1,
    "thinking_tokens": 0,
}


def find(settings: ModelSettings) -> Provider:
    """Find the provider that the settings name, or raise ``ModelSettingsError``."""
    if settings.provider not in PROVIDERS:
        known = ", ".join(sorted(PROVIDERS))
        raise ModelSettingsError(f"provider: must be one of {known}; most endpoints are openai, with a base_url")
    return PROVIDERS[settings.provider]


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
            raise ModelSettingsError(f"{name}: goes with the provider {owners} alone; take it out")
    if settings.price and not all(usd is None or 0 <= usd < math.inf for usd in structs.astuple(settings.price)):
        fix = "must be USD per million tokens, 0 or more, as { input = 0.40, output = 1.60 }"
        raise ModelSettingsError(f"price: {fix}")
    provider.check(settings)
    if provider.probe is not None and settings.api_key_env is None and settings.api_key_file is None:
        host = httpx.URL(settings.base_url or provider.default_url).host
        variable = next((each.key_hosts[host] for each in PROVIDERS.values() if host in each.key_hosts), None)
        if variable is not None:
            fix = f"name the variable that holds it, as {variable}"
            raise ModelSettingsError(f"api_key_env: https://{host} requires a key; {fix}")


def build(settings: ModelSettings, environment: Mapping[str, str], proxy: str | None = None) -> ChatModel:
    """Check the settings and make the model; its key is read from the environment or from the file that they name.

    Raises:
        ModelSettingsError: The settings, or the key, proxy or file they name, cannot be used.
    """
    check(settings)
    return find(settings).make(settings, environment, proxy)
