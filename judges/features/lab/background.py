"""The event loop of ``judges.features.lab.api`` in a thread, and the judge models that live in it.

All requests run in this one loop. So calls work with and without a running event loop, as in a notebook, and all calls
for one model share its connections and limits, whichever thread or loop they come from.
"""

import asyncio
import atexit
import logging
import os
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

import httpx
import msgspec

from judges.core.model import ChatModel, ModelSettings
from judges.endpoints.client import OFFLINE_PATIENCE_S, DelayNotes, LimitedModel, offline_model
from judges.models.registry import PROVIDERS, ModelSettingsError, build, is_heuristic

log = logging.getLogger("judges")
T = TypeVar("T")
Model: TypeAlias = str | Mapping[str, object] | ModelSettings | ChatModel
"""A judge model: `"openai:/NAME"`, `"anthropic:/NAME"`, `"lexical"`, the keys of a `[models.NAME]`, or an object."""
_NAMED: Final = re.compile(r"(\w+):/{0,2}(\S+)")
_FORMS: Final = ", ".join(
    (
        *(f'"{name}:/NAME"' for name, provider in PROVIDERS.items() if provider.hosted),
        *(f'"{name}"' for name, provider in PROVIDERS.items() if provider.is_heuristic),
        "or a dict with base_url, model and api_key_env",
    )
)


class Background:
    """An event loop in a daemon thread, started by the first call, with its models."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id: int | None = None
        self._models: dict[Hashable, LimitedModel] = {}
        self.closers: dict[str, Callable[[], Awaitable[None]]] = {}  # By name, such as the processes of a judge.

    def submit(self, work: Coroutine[Any, Any, T], *, blocks: bool) -> Future[T]:
        """Run a coroutine in the loop; ``blocks`` says that the caller waits for it without an event loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._loop.run_forever, name="judges", daemon=True)
                thread.start()
                self._thread_id = thread.ident
        if blocks and threading.get_ident() == self._thread_id:
            work.close()
            raise RuntimeError("a model cannot wait for a judge in the event loop of the judges; await its aio()")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def model(self, source: Model) -> LimitedModel:
        """Return a model under its limits, made once, or raise ``ModelSettingsError``. Call it in the loop."""
        if isinstance(source, LimitedModel):
            return source
        if isinstance(source, ChatModel):
            key: Hashable = id(source)
        else:
            source = _settings(source)
            # A key that is exported after the first call makes another model.
            key = msgspec.json.encode(source), os.environ.get(source.api_key_env or "")
        if key not in self._models:
            chat_model = build(source, os.environ) if isinstance(source, ModelSettings) else source
            where = httpx.URL(chat_model.settings.base_url or "").host or chat_model.settings.judge_model
            notes = DelayNotes(
                OFFLINE_PATIENCE_S,
                lambda note, seconds: log.warning(
                    "%s%s", note, "" if seconds is None else f"; trying again in {seconds:.0f} s"
                ),
                where,
            )
            self._models[key] = offline_model(chat_model, notes)
        return self._models[key]

    def close(self) -> None:
        """Close connections and the processes of judges, within a bound."""
        if self._loop is not None:
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(self._aclose(), self._loop).result(timeout=2.0)

    async def _aclose(self) -> None:
        closing = [*(model.aclose() for model in self._models.values()), *(close() for close in self.closers.values())]
        self._models.clear()
        self.closers.clear()
        await asyncio.gather(*closing, return_exceptions=True)


_background = Background()


def background() -> Background:
    """Return the background of this process."""
    return _background


def _renew() -> None:
    # A forked process has neither the thread nor the right to the connections.
    global _background  # noqa: PLW0603 - the module's only state
    _background = Background()


@atexit.register
def _close() -> None:
    _background.close()


os.register_at_fork(after_in_child=_renew)


def wait(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the background and block until it ends."""
    future = _background.submit(work, blocks=True)
    try:
        return future.result()
    except BaseException:
        # After Ctrl-C no further request is sent.
        future.cancel()
        raise


async def join(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the background, and await it in any event loop; a cancellation ends both."""
    return await asyncio.wrap_future(_background.submit(work, blocks=False))


def _settings(source: str | Mapping[str, object] | ModelSettings) -> ModelSettings:
    """Read a description of a model, or raise ``ModelSettingsError``."""
    if isinstance(source, ModelSettings):
        return source
    if isinstance(source, str):
        named = _NAMED.fullmatch(source)
        if named is None and not is_heuristic(ModelSettings(provider=source)):
            raise ModelSettingsError(f"model: {source!r} names no model; write {_FORMS}")
        source = {"provider": named[1], "model": named[2]} if named else {"provider": source}
    if not isinstance(source, Mapping):
        raise ModelSettingsError(f"model: must be {_FORMS}, and is of type {type(source).__name__}")
    provider = PROVIDERS.get(str(source.get("provider", "openai")))
    defaults = {} if "base_url" in source or provider is None else provider.hosted
    if "api_key" in source:
        raise ModelSettingsError("model: a key is not given itself; name its variable, as api_key_env='OPENAI_API_KEY'")
    try:
        return msgspec.convert({**defaults, **source}, ModelSettings)
    except msgspec.ValidationError as error:
        raise ModelSettingsError(f"model: {error}; known are {', '.join(ModelSettings.__struct_fields__)}") from None
