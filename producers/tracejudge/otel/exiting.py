"""What happens to spans when the process ends, whoever was set up first.

The OpenTelemetry SDK hands its last batch over in an exit handler of its own. Handlers run in the reverse order of
their registration: when `tracejudge.init` came after the provider, the SDK here would be gone by then.
"""

import atexit
import weakref
from collections.abc import Callable
from typing import Final, Protocol

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_tracer_provider

from tracejudge.swallowing import swallow

_TIMEOUT_MS: Final = 2_000


class Ending(Protocol):
    """Has spans that must go before the process does."""

    def shutdown(self) -> None:
        """Publish what is there, and take nothing more."""


class AtExit:
    """An exit handler that has the provider hand over what it has, and ends the exporter."""

    def __init__(self, exporter: Ending) -> None:
        self._run: Callable[[], None] = _handler(weakref.ref(exporter))
        atexit.register(self._run)

    def put_first(self) -> None:
        """Have it run before the handlers registered so far."""
        atexit.unregister(self._run)
        atexit.register(self._run)

    def cancel(self) -> None:
        """Have it not run."""
        atexit.unregister(self._run)


def _handler(reference: "weakref.ref[Ending]") -> Callable[[], None]:
    def run() -> None:
        exporter = reference()
        if exporter is None:
            return
        try:
            provider = get_tracer_provider()
            if isinstance(provider, TracerProvider):
                provider.force_flush(_TIMEOUT_MS)
        except Exception as error:  # noqa: BLE001 - another exporter's fault must not cost our spans
            swallow(error)
        exporter.shutdown()

    return run
