"""The registration of a provider of judge models, and the checks that providers with an HTTP endpoint share.

A provider is one file that defines ``PROVIDER`` and one row in ``judges.models.registry``. What it may need besides is
in docs/adding-a-feature.md.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import httpx

from judges.core.faults import Kind
from judges.core.model import ChatModel, ModelKind, ModelSettings
from judges.models.credentials import KeyRefusedError, ProxyRefusedError, is_endpoint, is_guarded, proxy_for, read_key
from judges.models.http import tls_context

# Settings of the providers whose endpoints bound an answer.
OUTPUT_SETTINGS: Final = frozenset({"max_output_tokens", "thinking_tokens", "body"})


class ModelSettingsError(ValueError):
    """The settings of a model cannot be used; the message begins with the key and ends with how to fix it."""

    def __init__(self, message: str, code: Kind = "wrong-value") -> None:
        super().__init__(message)
        self.code = code


class ProbeRequest(NamedTuple):
    """A GET request that lists the models of an endpoint and costs nothing."""

    url: str
    headers: Mapping[str, str]


class Provider(NamedTuple):
    """One kind of judge model, as `[models.NAME] provider` names it."""

    # Makes a model from its settings, the environment, and the `proxy` setting; the settings are checked before. It
    # raises ``ModelSettingsError`` when a key, a proxy or a file that they name cannot be used.
    make: Callable[[ModelSettings, Mapping[str, str], str | None], ChatModel]
    check: Callable[[ModelSettings], None]  # Raises ``ModelSettingsError`` for settings that it cannot use.
    # Makes the request by which `tracejudge doctor` reaches the endpoint with a key; None without an endpoint.
    probe: Callable[[ModelSettings, str | None], ProbeRequest | None] | None = None
    kind: ModelKind = "chat"  # The form in which judges ask its models.
    is_heuristic: bool = False  # Whether a fixed program answers. Its verdicts are free and marked as code.
    own_settings: frozenset[str] = frozenset()  # Settings that only providers which list them accept.
    request_paths: tuple[str, ...] = ()  # What each request adds to `base_url`; users copy addresses that end in it.
    default_url: str = ""  # The address of models without `base_url`.
    # Public hosts that require a key, whichever provider calls them, with the usual name of its variable.
    key_hosts: Mapping[str, str] = MappingProxyType({})
    # Settings of models at its maker's own address, for the form `"NAME:/MODEL"` of the Python API; without any it has
    # no such form.
    hosted: Mapping[str, object] = MappingProxyType({})


def check_endpoint(settings: ModelSettings, default_url: str = "") -> None:
    """Check model, address and key of a provider with an HTTP endpoint, or raise ``ModelSettingsError``."""
    if not settings.model:
        raise ModelSettingsError("model: is missing; name the endpoint's model", "missing-key")
    base_url = settings.base_url or default_url
    if not base_url:
        raise ModelSettingsError('base_url: is missing; set it, as "https://host/v1"', "missing-key")
    if not is_endpoint(base_url):
        raise ModelSettingsError('base_url: must be http:// or https:// and a host, as "https://host/v1"')
    if is_guarded(httpx.URL(base_url).host) and not settings.allow_link_local:
        raise ModelSettingsError(
            "base_url: is a link-local, metadata or unspecified address, where no judge model belongs; if this one"
            " does, set allow_link_local = true"
        )
    if settings.api_key_env is not None and settings.api_key_file is not None:
        message = "api_key_file: goes in place of api_key_env, not beside it; take one of them out"
        raise ModelSettingsError(message, "conflict")


class Access(NamedTuple):
    """The key and the proxy for an endpoint."""

    api_key: str | None
    proxy: str | None


def bearer(api_key: str | None) -> dict[str, str]:
    """Return the header that carries a key."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def access(settings: ModelSettings, environment: Mapping[str, str], proxy: str | None, url: str) -> Access:
    """Read the key of an endpoint and find the proxy for its address, or raise ``ModelSettingsError``."""
    try:
        key, proxy_url = read_key(settings, environment), proxy_for(url, proxy)
    except KeyRefusedError as error:
        raise ModelSettingsError(str(error)) from None
    except ProxyRefusedError as error:
        raise ModelSettingsError(f"base_url: {error}") from error
    try:
        tls_context(url, proxy_url)  # A file that cannot be used is an error now, and not of each request.
    except KeyRefusedError as error:
        raise ModelSettingsError(f"base_url: the variable {error}") from None
    return Access(key, proxy_url)
