"""The registration of a provider of judge models, and what providers with an HTTP endpoint share.

A provider is one file and one row in ``judges.models.registry``. What it may need besides is in
docs/changing.md.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final, NamedTuple, cast

from judges.core.faults import Kind
from judges.core.model import ChatModel, ModelKind, ModelSettings
from judges.models.credentials import (
    KeyRefusedError,
    ProxyRefusedError,
    is_endpoint,
    is_guarded,
    proxy_for,
    read_headers,
    read_key,
    tls_context,
)

ANTHROPIC_URL: Final = "https://api.anthropic.com"
BOUNDS: Final = ("max_tokens", "max_completion_tokens")  # Fields of a request that bound its answer.


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

    # Imported when it is used, because clients take long to import. It defines `make`, and perhaps `check` and `probe`.
    module: str
    has_check: bool = False  # Whether `check` replaces the check that providers with an endpoint share.
    has_probe: bool = False  # Whether there is an endpoint, which `tracejudge doctor` reaches.
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

    def make(self, settings: ModelSettings, environment: Mapping[str, str], proxy: str | None) -> ChatModel:
        """Make a model from checked settings, the environment and the `proxy` setting, or raise as ``check``."""
        return cast("ChatModel", import_module(self.module).make(settings, environment, proxy))

    def check(self, settings: ModelSettings) -> None:
        """Check what is particular to the provider, or raise ``ModelSettingsError``."""
        if self.has_check:
            import_module(self.module).check(settings)
        elif self.has_probe:
            check_endpoint(settings, self.default_url)

    def probe(self, settings: ModelSettings, key: str | None) -> ProbeRequest | None:
        """Make the request by which `tracejudge doctor` reaches the endpoint with a key; None without an endpoint."""
        if not self.has_probe:
            return None
        probe = getattr(import_module(self.module), "probe", list_models)
        return cast("ProbeRequest | None", probe(settings, key))


def check_endpoint(settings: ModelSettings, default_url: str = "") -> None:
    """Check model, address and key of a provider with an HTTP endpoint, or raise ``ModelSettingsError``."""
    import httpx  # noqa: PLC0415 - for models with an endpoint alone

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


def join_path(base_url: str, path: str) -> str:
    """Add a path to an address, before its query, such as Azure's `api-version`."""
    import httpx  # noqa: PLC0415 - for models with an endpoint alone

    url = httpx.URL(base_url)
    return str(url.copy_with(path=f"{url.path.rstrip('/')}{path}"))


def list_models(settings: ModelSettings, key: str | None) -> ProbeRequest:
    """Make the request that lists models, of providers that define no ``probe``."""
    return ProbeRequest(join_path(settings.base_url or "", "/models"), bearer(key))


def bearer(api_key: str | None) -> dict[str, str]:
    """Return the header that carries a key."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def read_access(
    settings: ModelSettings, environment: Mapping[str, str], proxy: str | None, url: str
) -> tuple[ModelSettings, str | None, str | None]:
    """Read headers and key of an endpoint, find the proxy for its address, or raise ``ModelSettingsError``."""
    try:
        settings, key = read_headers(settings, environment), read_key(settings, environment)
        proxy_url = proxy_for(url, proxy)
    except KeyRefusedError as error:
        raise ModelSettingsError(str(error)) from None
    except ProxyRefusedError as error:
        raise ModelSettingsError(f"base_url: {error}") from error
    try:
        tls_context(url, proxy_url)  # A file that cannot be used is an error now, and not of each request.
    except KeyRefusedError as error:
        raise ModelSettingsError(f"base_url: the variable {error}") from None
    return settings, key, proxy_url
