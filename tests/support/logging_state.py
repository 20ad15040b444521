"""The logging of the process, which `worker.core.telemetry.logs` configures as a whole."""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import structlog

from worker.core.telemetry import logs

__all__ = ["logging_restored"]

_OURS = ("judges", "tracejudge", "worker")


@contextmanager
def logging_restored() -> Iterator[None]:
    """Restore structlog, the root logger and the hooks for uncaught errors at the end of the block."""
    config = structlog.get_config()
    processors = list(config["processors"])
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in ("", *logs._CHATTY)}
    handlers, hooks = list(root.handlers), (threading.excepthook, sys.unraisablehook)
    capturing = logging._warnings_showwarning is not None
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = hooks
        if root.handlers != handlers:
            root.handlers[:] = handlers
        for name, level in levels.items():
            if (logger := logging.getLogger(name)).level != level:
                logger.setLevel(level)
        if (logging._warnings_showwarning is not None) != capturing:
            logging.captureWarnings(capturing)
        if structlog.get_config() != config or config["processors"] != processors:
            config["processors"][:] = processors  # the same list, which loggers refer to
            structlog.configure(**config)
            _forget_cached_loggers()


def _forget_cached_loggers() -> None:
    """Remove what loggers of modules cached: structlog binds them to the configuration of their first line for good."""
    for name, module in sys.modules.copy().items():
        if name.partition(".")[0] in _OURS and isinstance(module, ModuleType):
            for value in vars(module).values():
                if isinstance(value, structlog._config.BoundLoggerLazyProxy):
                    vars(value).pop("bind", None)
