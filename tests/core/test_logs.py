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
from typing import Any

import pytest
import structlog
from celery import platforms
from celery.worker.consumer import consumer as celery_consumer

from worker.core.telemetry import logs

BODY = "BODY-OF-A-MESSAGE"


def failing(text: str) -> None:
    raise ValueError(text)


class Written:
    """What was written to standard error."""

    def __init__(self, stream: io.StringIO) -> None:
        self.stream = stream

    @property
    def text(self) -> str:
        assert logs._WRITER.flush(10)
        return self.stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    @property
    def line(self) -> dict[str, Any]:
        (only,) = self.lines
        return only


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logs.configure("info")
    return Written(stream)


def test_our_lines_are_json_with_their_fields(written: Written) -> None:
    structlog.get_logger("tracejudge.test").warning("service retrying", thread="ingest", seconds=0.5)
    line = written.line
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "service retrying",
        "level": "warning",
        "logger": "tracejudge.test",
        "thread": "ingest",
        "seconds": 0.5,
    }


def test_lines_can_be_searched_for_a_field_and_its_value(written: Written) -> None:
    structlog.get_logger("tracejudge.test").info("verdict", seconds=0.5, service="Läden")
    structlog.get_logger("tracejudge.test").info("verdict", seconds=0.5)
    assert [line.count('"event": "verdict"') for line in written.text.splitlines()] == [1, 1]
    assert [line.count('"seconds": 0.5') for line in written.text.splitlines()] == [1, 1]


def test_rows_are_a_line_each_with_the_fields_of_the_call(written: Written) -> None:
    structlog.get_logger("tracejudge.test").info("verdict", rows=[{"judge": "a"}, {"judge": "b"}], worker="w1")
    fields = [(line["event"], line["judge"], line["worker"], line["level"]) for line in written.lines]
    assert fields == [("verdict", "a", "w1", "info"), ("verdict", "b", "w1", "info")]
    assert "rows" not in written.text


def test_lines_of_libraries_have_the_same_form(written: Written) -> None:
    logging.getLogger("some.library").warning("lost %s of %d", "connection", 3)
    line = written.line
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "lost connection of 3", "level": "warning", "logger": "some.library"}


def test_a_text_of_several_lines_is_one_line(written: Written) -> None:
    structlog.get_logger("tracejudge.test").info("two\nlines", text="a\nb\u2028c")
    logging.getLogger("some.library").warning("two\r\nlines")
    assert written.text.count("\n") == 2
    assert [line["event"] for line in written.lines] == ["two\nlines", "two\r\nlines"]


def test_an_exception_is_a_field_of_its_line(written: Written) -> None:
    try:
        failing("by zero")
    except ValueError:
        structlog.get_logger("tracejudge.test").exception("broken")
        logging.getLogger("some.library").exception("broken too")
    assert [line["event"] for line in written.lines] == ["broken", "broken too"]
    assert all(line["exception"].endswith("ValueError: by zero") for line in written.lines)


def test_bound_fields_are_on_all_lines(written: Written) -> None:
    with structlog.contextvars.bound_contextvars(batch="b1"):
        structlog.get_logger("tracejudge.test").info("ours")
        logging.getLogger("some.library").info("theirs")
    assert [line["batch"] for line in written.lines] == ["b1", "b1"]


@pytest.mark.parametrize(("level", "events"), [("debug", 3), ("info", 2), ("warning", 1), ("error", 0)])
@pytest.mark.usefixtures("written")
def test_the_level_holds_for_ours_and_theirs(level: str, events: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logs.configure(level)
    for logger in (structlog.get_logger("tracejudge.test"), logging.getLogger("some.library")):
        logger.debug("one")
        logger.info("two")
        logger.warning("three")
    assert len(Written(stream).lines) == 2 * events


@pytest.mark.parametrize(
    ("value", "rendered"),
    [
        ("Läden \U0001f600 \u2028", "Läden \U0001f600 \u2028"),
        ("\ud800", "\ud800"),
        (ValueError("by zero"), "ValueError('by zero')"),
        (type("Name", (str,), {})("shop"), "shop"),
        ({"safety": 0.5}, {"safety": 0.5}),
        ({1: None}, {"1": None}),
        (2**70, 2**70),
        (math.nan, None),
    ],
    ids=["other characters", "half a character", "an object", "a kind of text", "a dict", "keys", "large", "no number"],
)
def test_any_value_of_a_field_is_logged_as_one_line_of_ascii(written: Written, value: object, rendered: object) -> None:
    structlog.get_logger("tracejudge.test").info("odd", value=value)
    logging.getLogger("some.library").warning("%s", value)
    assert written.text.isascii()
    assert written.lines[0]["value"] == rendered
    assert [line["event"] for line in written.lines] == ["odd", str(value)]


def test_a_closed_standard_error_does_not_stop_logging(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    written.stream.close()
    structlog.get_logger("tracejudge.test").info("lost")
    logging.getLogger("some.library").warning("lost")
    later = Written(io.StringIO())
    monkeypatch.setattr(sys, "stderr", later.stream)
    logs.configure("info")
    structlog.get_logger("tracejudge.test").info("not lost")
    assert logs._WRITER.flush(10)
    logged = [(line["event"], line.get("count")) for line in later.lines]
    assert logged == [("not lost", None), ("log records dropped", 2)]


def test_a_full_log_pipe_blocks_no_thread_and_lost_lines_are_counted() -> None:
    lines = [f"{number} {'x' * 1000}\n" for number in range(10_000)]
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


def test_a_full_disk_and_a_closed_pipe_lose_lines_and_count_them() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    full = os.open("/dev/full", os.O_WRONLY)
    for name, file in (("EPIPE", writing), ("ENOSPC", full)):
        writer = logs.LogWriter()
        with open(file, "w") as writer.stream:  # noqa: PTH123 - a file, not a path
            for _ in range(100):
                writer.write("lost\n")
            assert writer.flush(10), name
        assert writer.dropped == 100, name


def test_a_process_that_ends_has_written_all_its_lines_or_waits_for_two_seconds_at_most() -> None:
    code = (
        "from worker.core.telemetry import logs; import structlog; logs.configure('info')\n"
        "log = structlog.get_logger('x')\n"
    )
    code += "for number in range(3000): log.info('line', number=number)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert [json.loads(line)["number"] for line in ended.stderr.splitlines()] == list(range(3000))
    reading, writing = os.pipe()
    try:
        assert subprocess.run([sys.executable, "-c", code], stderr=writing, timeout=60, check=True).returncode == 0
    finally:
        os.close(reading)
        os.close(writing)


def test_an_uncaught_exception_of_a_thread_is_logged_without_its_text(written: Written) -> None:
    thread = threading.Thread(target=failing, args=(WORD,))
    thread.start()
    thread.join()
    assert WORD not in written.text
    assert written.line["event"] == "uncaught exception"
    assert written.line["error"].startswith("ValueError in test_logs.py:")


def test_a_record_that_cannot_be_formatted_is_told_without_its_arguments(written: Written) -> None:
    handler = next(handler for handler in logging.getLogger().handlers if isinstance(handler, logs._Handler))
    handler.handle(logging.LogRecord("some.library", logging.WARNING, "library.py", 7, "%d tries", (WORD,), None))
    assert WORD not in written.text
    assert written.line["event"] == "log record cannot be formatted"
    assert written.line["place"] == "library.py:7"


def test_a_logger_follows_the_next_configuration_to_its_output(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = structlog.get_logger("tracejudge.test")
    logger.info("first")
    later = io.StringIO()
    monkeypatch.setattr(sys, "stderr", later)
    logs.configure("info")
    logger.info("second")
    assert [line["event"] for line in (*written.lines, *Written(later).lines)] == ["first", "second"]


def test_messages_of_libraries_for_each_task_and_request_are_left_out(written: Written) -> None:
    for name in ("celery.app.trace", "celery.worker.strategy", "httpx", "celery.redirected"):
        logging.getLogger(name).info("said %s", BODY)
        logging.getLogger(name).warning("matters")
    assert [line["event"] for line in written.lines] == ["matters"] * 4


def test_a_second_configuration_doubles_no_line(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", written.stream)
    logs.configure("info")
    logging.getLogger("some.library").warning("once")
    assert len(written.lines) == 1


BODIES = {
    "unknown message": (
        celery_consumer.UNKNOWN_FORMAT,
        (BODY,),
        "Received and deleted unknown message.  Wrong destination?!?",
    ),
    "unregistered task": (
        celery_consumer.UNKNOWN_TASK_ERROR,
        (BODY, BODY, BODY, BODY),
        "Received unregistered task of type",
    ),
    "invalid task": (celery_consumer.INVALID_TASK_ERROR, (BODY, BODY), "Received invalid task message:"),
    "undecodable message": (celery_consumer.MESSAGE_DECODE_ERROR, (BODY,) * 5, "Can't decode message body"),
    "kombu's mixin": (
        "Can't decode message body: %r (type:%r encoding:%r raw:%r')",
        (BODY, BODY, BODY, BODY),
        "Can't decode message body",
    ),
    "one argument as a mapping": ("Message Body: %(body)s", ({"body": BODY},), "Message Body"),
    "no arguments": (f"Message of 7 bytes with body {BODY} from redis", (), "Message of 7 bytes with body"),
    "over lines": (f"Rejected:\n{BODY}\nwas the body", (), "Rejected:"),
}


@pytest.mark.parametrize(("text", "arguments", "event"), BODIES.values(), ids=BODIES.keys())
def test_of_a_library_s_line_about_a_body_only_the_beginning_is_left(
    written: Written, text: str, arguments: tuple[Any, ...], event: str
) -> None:
    try:
        failing(BODY)
    except ValueError:
        logging.getLogger("celery.worker.consumer.consumer").exception(text, *arguments, stack_info=True)
    assert BODY not in written.text
    line = written.line
    assert set(line) == {"event", "level", "logger", "timestamp"}
    assert line["event"] == event


def test_a_line_that_speaks_of_no_body_keeps_its_arguments(written: Written) -> None:
    logging.getLogger("celery.worker").warning("pool of %d threads", 64)
    assert written.line["event"] == "pool of 64 threads"


WORD = "A-PLANTED-WORD"
QUOTATIONS = {
    "an argument": ("celery.pool", "TaskPool: Apply %s (args:%s kwargs:%s)", (WORD, (WORD,), {WORD: WORD})),
    "a mapping": (
        "celery.app.trace",
        "Task %(name)s[%(id)s] raised: %(exc)s",
        ({"name": WORD, "id": WORD, "exc": WORD},),
    ),
    "a text made before": ("kombu.transport.virtual.base", f"UNABLE TO RESTORE 1 MESSAGES: ['{WORD}']", ()),
    "an object of any kind": ("kombu.transport.redis", "Could not restore message: %r", ({"x": WORD},)),
    "an error": ("celery.worker", "Unrecoverable error: %r", (ValueError(WORD),)),
    "a result": ("asyncio", f"Task exception was never retrieved\nfuture: <Task exception=ValueError('{WORD}')>", ()),
    "a warning": ("py.warnings", "%s", (f"some/file.py:7: UserWarning: {WORD}",)),
    "a number that is none": ("amqp", "after %d tries", (WORD,)),
    "no text": ("celery.worker", ValueError(WORD), ()),
    "a user and a password": ("kombu.connection", "lost %s", (f"redis://{WORD}:{WORD}@host/0",)),
}
SAID = [
    "TaskPool: Apply ... (args:... kwargs:...)",
    "Task ...[...] raised: ...",
    "UNABLE TO RESTORE 1 MESSAGES",
    "Could not restore message: ...",
    "Unrecoverable error: ValueError",
    "Task exception was never retrieved",
    "some/file.py:7",
    "after %d tries",
    "ValueError",
    "lost ...",
]


@pytest.mark.parametrize(
    ("quotation", "message"), list(zip(QUOTATIONS.values(), SAID, strict=True)), ids=QUOTATIONS.keys()
)
def test_logs_of_message_transports_hold_no_text_of_messages(
    written: Written, quotation: tuple[str, Any, tuple[Any, ...]], message: str
) -> None:
    name, text, arguments = quotation
    try:
        failing(WORD)
    except ValueError:
        logging.getLogger(name).error(text, *arguments)  # noqa: TRY400 - both ways
        logging.getLogger(name).exception(text, *arguments, stack_info=True)
    assert WORD not in written.text
    plain, failed = written.lines
    assert plain["event"] == message
    assert failed["event"].startswith(f"{message} (ValueError in test_logs.py:")
    assert set(failed) == {"event", "level", "logger", "timestamp"}


def test_where_a_broker_is_and_why_it_is_not_there_stays_readable(written: Written) -> None:
    consumer = logging.getLogger("celery.worker.consumer.consumer")
    url, shown = f"redis://u:{WORD}@host:1/0", "redis://host:1/0"
    cause = ConnectionError(WORD)
    cause.__cause__ = ConnectionRefusedError(WORD)
    consumer.info("Connected to %s", url)
    consumer.error(celery_consumer.CONNECTION_ERROR, f"{url};{url}", cause, "Trying again")
    consumer.warning("%s (%r)", celery_consumer.CONNECTION_RETRY, cause)
    assert [line["event"] for line in written.lines] == [
        f"Connected to {shown}",
        f"consumer: Cannot connect to {shown};{shown}: ConnectionError from ConnectionRefusedError.\n...",
        "consumer: Connection to broker lost. (ConnectionError from ConnectionRefusedError)",
    ]


def test_a_broker_that_stays_away_is_one_line_and_none_where_it_is_our_redis(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery repeats the line every few seconds; of our own Redis the worker logs the absence itself."""
    now = [1000.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    consumer = logging.getLogger("celery.worker.consumer.consumer")

    def away(*at_s: float) -> None:
        for now[0] in at_s:
            consumer.error(celery_consumer.CONNECTION_ERROR, "amqp://host", ConnectionError(), "Trying again")

    away(1000, 1002, 1059, 1061, 1062)
    consumer.info("Connected to %s", "amqp://host")
    away(1063, 1064)
    assert ["Cannot" in line["event"] for line in written.lines] == [True, True, False, True]
    logs.configure("info", has_own_broker=False)
    away(2000, 3000)
    assert len(written.lines) == 4


def test_the_warning_about_root_is_our_text(written: Written) -> None:
    text = platforms.ROOT_DISCOURAGED.format(uid=0, euid=0, gid=0, egid=0)
    logging.getLogger("py.warnings").warning(
        "%s", warnings.formatwarning(text, RuntimeWarning, "celery/platforms.py", 841)
    )
    assert written.line["event"] == "the worker runs as root; run it as a user of its own, who may only read its files"
