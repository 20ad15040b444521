"""Logs: one JSON object a line, and the body of a message in none of them."""

import io
import json
import logging
import math
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import structlog
from celery import platforms
from celery.worker.consumer import consumer as celery_consumer

from worker.core.telemetry import logs

BODY = "BODY-OF-A-MESSAGE"
WORD = "A-PLANTED-WORD"
BODIES: list[tuple[str, tuple[Any, ...], str]] = [
    (celery_consumer.UNKNOWN_FORMAT, (BODY,), "Received and deleted unknown message.  Wrong destination?!?"),
    (celery_consumer.UNKNOWN_TASK_ERROR, (BODY,) * 4, "Received unregistered task of type"),
    (celery_consumer.INVALID_TASK_ERROR, (BODY,) * 2, "Received invalid task message:"),
    (celery_consumer.MESSAGE_DECODE_ERROR, (BODY,) * 5, "Can't decode message body"),
    ("Can't decode message body: %r (type:%r encoding:%r raw:%r')", (BODY,) * 4, "Can't decode message body"),
    ("Message Body: %(body)s", ({"body": BODY},), "Message Body"),
    (f"Message of 7 bytes with body {BODY} from redis", (), "Message of 7 bytes with body"),
    (f"Rejected:\n{BODY}\nwas the body", (), "Rejected:"),
]
TASK_ERROR = f"Task exception was never retrieved\nfuture: <Task exception=ValueError('{WORD}')>"
QUOTATIONS: list[tuple[str, Any, tuple[Any, ...], str]] = [
    (
        "celery.pool",
        "TaskPool: Apply %s (args:%s kwargs:%s)",
        (WORD, (WORD,), {WORD: WORD}),
        "TaskPool: Apply ... (args:... kwargs:...)",
    ),
    (
        "celery.app.trace",
        "Task %(name)s[%(id)s] raised: %(exc)s",
        ({"name": WORD, "id": WORD, "exc": WORD},),
        "Task ...[...] raised: ...",
    ),
    ("kombu.transport.virtual.base", f"UNABLE TO RESTORE 1 MESSAGES: ['{WORD}']", (), "UNABLE TO RESTORE 1 MESSAGES"),
    ("kombu.transport.redis", "Could not restore message: %r", ({"x": WORD},), "Could not restore message: ..."),
    ("celery.worker", "Unrecoverable error: %r", (ValueError(WORD),), "Unrecoverable error: ValueError"),
    ("asyncio", TASK_ERROR, (), "Task exception was never retrieved"),
    ("py.warnings", "%s", (f"some/file.py:7: UserWarning: {WORD}",), "some/file.py:7"),
    ("amqp", "after %d tries", (WORD,), "after %d tries"),
    ("celery.worker", ValueError(WORD), (), "ValueError"),
    ("kombu.connection", "lost %s", (f"redis://{WORD}:{WORD}@host/0",), "lost ..."),
]


def failing(text: str) -> None:
    raise ValueError(text)


class Written:
    """What was written to standard error."""

    def __init__(self, stream: io.StringIO) -> None:
        self.stream = stream

    @property
    def text(self) -> str:
        assert logs._WRITER.flush(10)  # lines leave in a thread of their own
        return self.stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]

    def take(self) -> list[dict[str, Any]]:
        """Return the lines, and forget them."""
        lines = self.lines
        self.stream.seek(0)
        self.stream.truncate()
        return lines


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Written]:
    """Configures logging to a new standard error."""

    def configure(level: str = "info", **options: Any) -> Written:
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        logs.configure(level, **options)
        return Written(stream)

    return configure


@pytest.fixture
def written(configured: Callable[..., Written]) -> Written:
    return configured()


@pytest.fixture
def ours(written: Written) -> Any:  # noqa: ARG001 - logging is configured
    return structlog.get_logger("tracejudge.test")


THEIRS = logging.getLogger("some.library")


def test_lines_of_ours_and_of_libraries_are_json_of_one_form(written: Written, ours: Any) -> None:
    ours.warning("service retrying", thread="ingest", seconds=0.5)
    THEIRS.warning("lost %s of %d", "connection", 3)
    first, second = lines = written.take()
    assert [line.pop("timestamp")[-1] for line in lines] == ["Z", "Z"]
    own = {"event": "service retrying", "logger": "tracejudge.test", "thread": "ingest", "seconds": 0.5}
    assert first == {**own, "level": "warning"}
    assert second == {"event": "lost connection of 3", "level": "warning", "logger": "some.library"}
    ours.info("verdict", seconds=0.5, service="Läden")
    ours.info("verdict", seconds=0.5)
    for text in ('"event": "verdict"', '"seconds": 0.5'):
        assert [line.count(text) for line in written.text.splitlines()] == [1, 1], "a field and its value can be found"
    written.take()
    ours.info("verdict", rows=[{"judge": "a"}, {"judge": "b"}], worker="w1")
    fields = [(line["event"], line["judge"], line["worker"], "rows" in line) for line in written.take()]
    assert fields == [("verdict", "a", "w1", False), ("verdict", "b", "w1", False)]
    ours.info("two\nlines", text="a\nb\u2028c")
    THEIRS.warning("two\r\nlines")
    assert written.text.count("\n") == 2
    assert [line["event"] for line in written.take()] == ["two\nlines", "two\r\nlines"]
    try:
        failing("by zero")
    except ValueError:
        ours.exception("broken")
        THEIRS.exception("broken too")
    with structlog.contextvars.bound_contextvars(batch="b1"):
        ours.info("ours")
        THEIRS.info("theirs")
    broken, broken_too, *bound = written.take()
    assert (broken["event"], broken_too["event"]) == ("broken", "broken too")
    assert all(line["exception"].endswith("ValueError: by zero") for line in (broken, broken_too))
    assert [(line["event"], line["batch"]) for line in bound] == [("ours", "b1"), ("theirs", "b1")]


def test_the_level_holds_for_ours_and_theirs(configured: Callable[..., Written]) -> None:
    for level, events in (("debug", 3), ("info", 2), ("warning", 1), ("error", 0)):
        written = configured(level)
        for logger in (structlog.get_logger("tracejudge.test"), THEIRS):
            logger.debug("one")
            logger.info("two")
            logger.warning("three")
        assert len(written.lines) == 2 * events, level


def test_any_value_of_a_field_is_logged_as_one_line_of_ascii(written: Written, ours: Any) -> None:
    for value, rendered in (
        ("Läden \U0001f600 \u2028", "Läden \U0001f600 \u2028"),
        ("\ud800", "\ud800"),
        (ValueError("by zero"), "ValueError('by zero')"),
        (type("Name", (str,), {})("shop"), "shop"),
        ({"safety": 0.5}, {"safety": 0.5}),
        ({1: None}, {"1": None}),
        (2**70, 2**70),
        (math.nan, None),
    ):
        ours.info("odd", value=value)
        THEIRS.warning("%s", value)
        assert written.text.isascii(), ascii(value)
        odd, theirs = written.take()
        assert (odd["value"], odd["event"], theirs["event"]) == (rendered, "odd", str(value)), ascii(value)
    # Errors of threads and of formatting are logged without their text.
    thread = threading.Thread(target=failing, args=(WORD,))
    thread.start()
    thread.join()
    handler = next(handler for handler in logging.getLogger().handlers if isinstance(handler, logs._Handler))
    handler.handle(logging.LogRecord("some.library", logging.WARNING, "library.py", 7, "%d tries", (WORD,), None))
    assert WORD not in written.text
    uncaught, unformatted = written.lines
    assert uncaught["event"] == "uncaught exception"
    assert uncaught["error"].startswith("ValueError in test_logs.py:")
    assert (unformatted["event"], unformatted["place"]) == ("log record cannot be formatted", "library.py:7")


def test_a_closed_standard_error_does_not_stop_logging(written: Written, ours: Any, configured: Any) -> None:
    written.stream.close()
    ours.info("lost")
    THEIRS.warning("lost")
    later = configured()
    ours.info("not lost")  # a logger follows the next configuration to its output
    assert logs._WRITER.flush(10)
    logged = [(line["event"], line.get("count")) for line in later.lines]
    assert logged == [("not lost", None), ("log records dropped", 2)]
    logs.configure("info")
    THEIRS.warning("once")
    assert len(later.take()) == 3, "a second configuration doubles no line"


def test_a_full_log_pipe_blocks_no_thread_and_lost_lines_are_counted() -> None:
    lines = [f"{number} {'x' * 1000}\n" for number in range(8_000)]
    for kind in ("blocking", "non-blocking"):
        reading, writing = os.pipe()
        os.set_blocking(writing, kind == "blocking")
        writer, counted = logs.LogWriter(), []
        writer.on_dropped = counted.append
        with open(writing, "w") as writer.stream, open(reading, "rb") as pipe:  # noqa: PTH123 - files, not paths
            for line in lines:
                writer.write(line)
            assert not writer.flush(0.1), f"{kind}: the pipe must be full"
            in_memory = len(lines) - writer.dropped
            assert 1000 < in_memory < 6000, kind
            assert sum(counted) == writer.dropped, kind
            read = [pipe.readline().decode() for _ in range(in_memory)]
            assert set(read) <= set(lines), f"{kind}: lines must be whole"
            assert read == sorted(read, key=lines.index), f"{kind}: lines must stay in order"
            assert writer.flush(10), kind
    reading, writing = os.pipe()
    os.close(reading)
    for name, file in (("EPIPE", writing), ("ENOSPC", os.open("/dev/full", os.O_WRONLY))):
        writer = logs.LogWriter()
        with open(file, "w") as writer.stream:  # noqa: PTH123 - a file, not a path
            for _ in range(100):
                writer.write("lost\n")
            assert writer.flush(10), name
        assert writer.dropped == 100, name


def test_a_process_that_ends_has_written_all_its_lines_or_waits_for_two_seconds_at_most() -> None:
    code = "from worker.core.telemetry import logs; import structlog; logs.configure('info')\n"
    code += "log = structlog.get_logger('x')\nfor number in range(3000): log.info('line', number=number)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert [json.loads(line)["number"] for line in ended.stderr.splitlines()] == list(range(3000))
    reading, writing = os.pipe()
    try:
        assert subprocess.run([sys.executable, "-c", code], stderr=writing, timeout=60, check=True).returncode == 0
    finally:
        os.close(reading)
        os.close(writing)


def test_of_a_library_s_line_about_a_body_only_the_beginning_is_left(written: Written) -> None:
    for name in ("celery.app.trace", "celery.worker.strategy", "httpx", "celery.redirected"):
        logging.getLogger(name).info("said %s", BODY)  # of each task and request
        logging.getLogger(name).warning("matters")
    assert [line["event"] for line in written.take()] == ["matters"] * 4
    for text, arguments, event in BODIES:
        try:
            failing(BODY)
        except ValueError:
            logging.getLogger("celery.worker.consumer.consumer").exception(text, *arguments, stack_info=True)
        assert BODY not in written.text, text
        (line,) = written.take()
        assert (set(line), line["event"]) == ({"event", "level", "logger", "timestamp"}, event)
    logging.getLogger("celery.worker").warning("pool of %d threads", 64)
    text = platforms.ROOT_DISCOURAGED.format(uid=0, euid=0, gid=0, egid=0)
    warning = warnings.formatwarning(text, RuntimeWarning, "celery/platforms.py", 841)
    logging.getLogger("py.warnings").warning("%s", warning)
    plain, as_root = (line["event"] for line in written.take())
    assert plain == "pool of 64 threads", "what speaks of no body keeps its arguments"
    assert as_root.startswith("the worker runs as root; ")
    for name, text, arguments, message in QUOTATIONS:
        try:
            failing(WORD)
        except ValueError:
            logging.getLogger(name).error(text, *arguments)  # noqa: TRY400 - both ways
            logging.getLogger(name).exception(text, *arguments, stack_info=True)
        assert WORD not in written.text, message
        plain, failed = written.take()
        assert plain["event"] == message
        assert failed["event"].startswith(f"{message} (ValueError in test_logs.py:")
        assert set(failed) == {"event", "level", "logger", "timestamp"}


def test_where_a_broker_is_and_why_it_is_not_there_stays_readable(
    written: Written, configured: Callable[..., Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery repeats the line every few seconds; of our own Redis the worker logs the absence itself."""
    consumer = logging.getLogger("celery.worker.consumer.consumer")
    url, shown = f"redis://u:{WORD}@host:1/0", "redis://host:1/0"
    cause = ConnectionError(WORD)
    cause.__cause__ = ConnectionRefusedError(WORD)
    consumer.info("Connected to %s", url)
    consumer.error(celery_consumer.CONNECTION_ERROR, f"{url};{url}", cause, "Trying again")
    consumer.warning("%s (%r)", celery_consumer.CONNECTION_RETRY, cause)
    assert written.events == [
        f"Connected to {shown}",
        f"consumer: Cannot connect to {shown};{shown}: ConnectionError from ConnectionRefusedError.\n...",
        "consumer: Connection to broker lost. (ConnectionError from ConnectionRefusedError)",
    ]
    now, written = [1000.0], configured()
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])

    def away(*at_s: float) -> None:
        for now[0] in at_s:
            consumer.error(celery_consumer.CONNECTION_ERROR, "amqp://host", ConnectionError(), "Trying again")

    away(1000, 1002, 1059, 1061, 1062)
    consumer.info("Connected to %s", "amqp://host")
    away(1063, 1064)
    assert ["Cannot" in event for event in written.events] == [True, True, False, True]
    written = configured(has_own_broker=False)
    away(2000)
    assert written.lines == []
