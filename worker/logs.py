"""Logs: one JSON object a line on standard error, ours and those of the libraries alike.

No line holds the text of a trace. Ours never take one; of the libraries' those that would print a message's body
lose it.
"""

import logging
import re
import sys
from typing import Final

import structlog

__all__ = ["configure"]

_CHATTY: Final = ("celery.app.trace", "celery.worker.strategy", "httpx", "celery.redirected")
_UP_TO_BODY: Final = re.compile(r"(?:(?!\n|%).)*?body|[^\n%]*", re.IGNORECASE)
_PROCESSORS: Final[tuple[structlog.typing.Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


class _NoBodies(logging.Filter):
    """Leaves of library records that would print a whole message what stands before it."""

    def filter(self, record: logging.LogRecord) -> bool:
        # Ours hold a dict here, and never a body.
        if isinstance(record.msg, str) and "body" in record.msg.lower():
            known = _UP_TO_BODY.match(record.msg)
            record.msg, record.args = known[0].rstrip() if known else "", ()
            record.exc_info = record.exc_text = record.stack_info = None
        return True


def configure(level: str) -> None:
    """Send all logging through one handler."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_PROCESSORS,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_PROCESSORS,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(_NoBodies())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
