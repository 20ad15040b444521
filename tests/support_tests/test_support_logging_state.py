"""What a test does to logging ends with it."""

import logging
import sys
import threading

import pytest
import structlog
from structlog.testing import capture_logs
from support.logging_state import logging_restored

from worker.core.judging.fetching import log
from worker.core.telemetry import logs


def test_a_logger_that_was_used_while_logs_were_configured_is_captured_afterwards() -> None:
    before = [*logging.getLogger().handlers], logging.getLogger().level, threading.excepthook, sys.unraisablehook
    with logging_restored():
        logs.configure("error")
        log.error("during")
        assert structlog.get_config()["cache_logger_on_first_use"]
    with capture_logs() as captured:
        log.error("afterwards")
    assert [line["event"] for line in captured] == ["afterwards"]
    after = [*logging.getLogger().handlers], logging.getLogger().level, threading.excepthook, sys.unraisablehook
    assert after == before


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_is_restored(turn: int) -> None:
    with capture_logs() as captured:
        log.error("turn")
    assert [line["event"] for line in captured] == ["turn"], turn
    logs.configure("error")
    log.error("configured")
