"""The endpoint of each model: whether its key is there, whether it answers, and whether it knows the model.

Asked for is its list of models, which costs nothing. Requests go the way of the worker's: no proxy, no redirect, and
to no guarded address.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import aiohttp
import httpx
import msgspec
from msgspec import Struct

from judges.models.addresses import AddressRefusedError, GuardedResolver
from judges.models.anthropic import PUBLIC_URL
from judges.models.build import ModelSettingsError, build, check
from judges.models.http import below
from judges.models.key import KeyRefusedError, read_key
from judges.models.model import ModelSettings
from worker.addresses import address
from worker.cli.doctor.connections import cause_of, chain
from worker.cli.doctor.finding import Finding, broken, ok, warning

__all__ = ["endpoint"]

_TIMEOUT_S: Final = 4.0
_MAX_BYTES: Final = 4 * 1024 * 1024
_ANTHROPIC_VERSION: Final = "2023-06-01"
_ASKED: Final = frozenset({"openai", "anthropic"})
_NO_LIST: Final = frozenset({404, 405, 501})
_REJECTED: Final = frozenset({401, 402, 403})


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


class _Reply(NamedTuple):
    status: int
    body: bytes


def endpoint(name: str, settings: ModelSettings, environment: Mapping[str, str]) -> Sequence[Finding]:
    """Look at the endpoint of `[models.NAME]`."""
    part = f"model {name}"
    try:
        if settings.provider not in _ASKED:
            build(settings, environment)
            return [ok(part, f"{settings.provider}, asks nobody")]
        check(settings)
        url, headers = _request(settings, read_key(settings, environment))
    except (ModelSettingsError, KeyRefusedError) as error:
        what, _, mend = f"{error}".partition("; ")
        return [broken(part, what, mend or "correct it in the configuration")]
    try:
        reply = asyncio.run(_get(url, headers, guarded=not settings.allow_link_local))
    except (aiohttp.ClientError, OSError) as error:
        return [_unreached(part, error, address(url))]
    return [_read(part, settings, reply, address(url))]


def _request(settings: ModelSettings, key: str | None) -> tuple[str, Mapping[str, str]]:
    if settings.provider == "openai":
        return below(settings.base_url or "", "/models"), {"authorization": f"Bearer {key}"} if key else {}
    base_url = settings.base_url or PUBLIC_URL
    has_version = httpx.URL(base_url).path.rstrip("/").endswith("/v1")
    headers = {"anthropic-version": _ANTHROPIC_VERSION}
    return below(base_url, "/models" if has_version else "/v1/models"), {
        **headers,
        "x-api-key": key,
    } if key else headers


async def _get(url: str, headers: Mapping[str, str], *, guarded: bool) -> _Reply:
    connector = aiohttp.TCPConnector(ssl=httpx.create_ssl_context(), resolver=GuardedResolver() if guarded else None)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.get(url, headers=headers, allow_redirects=False) as response,
    ):
        return _Reply(response.status, await _whole(response.content))


async def _whole(content: aiohttp.StreamReader) -> bytes:
    """Read all that comes; nothing is kept of what is too long for a list of models."""
    body = bytearray()
    async for piece in content.iter_any():
        body += piece
        if len(body) > _MAX_BYTES:
            return b""
    return bytes(body)


def _unreached(part: str, error: Exception, where: str) -> Finding:
    if any(isinstance(each, AddressRefusedError) for each in chain(error)):
        mend = "correct base_url; if the endpoint is meant to be there, set allow_link_local = true"
        return broken(part, f"{where} leads to a link-local or metadata address, which is refused", mend)
    return broken(part, *cause_of(error, where, "the endpoint"))


def _read(part: str, settings: ModelSettings, reply: _Reply, where: str) -> Finding:
    status = reply.status
    if status in _REJECTED:
        return broken(part, f"{where} rejects us: HTTP {status}", _mend_of_key(settings))
    if status in _NO_LIST:
        mend = "see that base_url ends as the endpoint wants it, often with /v1; `tracejudge doctor --ask` makes sure"
        return warning(part, f"{where} answers, but has no list of models: HTTP {status}", mend)
    if httpx.codes.is_redirect(status):
        return broken(part, f"{where} sends us elsewhere: HTTP {status}", "put the address it leads to into base_url")
    if status == httpx.codes.TOO_MANY_REQUESTS:
        return warning(part, f"{where} asks for fewer requests: HTTP 429", "wait, or raise the limit of the account")
    if not httpx.codes.is_success(status):
        return broken(part, f"{where} fails: HTTP {status}", "see the endpoint's own status and log")
    return _listed(part, settings, reply.body, where)


def _mend_of_key(settings: ModelSettings) -> str:
    if settings.api_key_file:
        return f"correct the key in the file {settings.api_key_file} (api_key_file)"
    if settings.api_key_env:
        return f"correct the key in the variable {settings.api_key_env} (api_key_env)"
    return "name its key by api_key_env or api_key_file"


def _listed(part: str, settings: ModelSettings, body: bytes, where: str) -> Finding:
    try:
        names = {model.id for model in msgspec.json.decode(body, type=_Models).data}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ok(part, where)
    if names and settings.model not in names:
        mend = "correct `model`; if it is right, as with a deployment's name, `tracejudge doctor --ask` makes sure"
        return warning(part, f"{where} lists {len(names)} models, and not {settings.model}", mend)
    return ok(part, where)
