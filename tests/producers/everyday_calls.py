"""Everyday calls of `publish`: what must arrive, and which reports the service's log must have.

`arrives` is the whole trace in the stream without its ids, its service and the time of its arrival, unless the call
gives these; None means that nothing arrives. A report is "reason field". Written before the code that it checks.
"""

import datetime as dt
from collections import OrderedDict, UserDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID

import lookalikes as like

from tracejudge.model import Document, Feedback, Message, Span, ToolCall, Trace, Usage

T: Final = 1_700_000_000.0
UTC: Final = dt.UTC
ISO: Final = "2023-11-14T22:13:20"  # T in UTC
AWARE: Final = dt.datetime.fromtimestamp(T, UTC)
LOCAL: Final = dt.datetime.fromtimestamp(T)  # noqa: DTZ006 - a naive time is local
UID: Final = UUID("12345678-1234-5678-1234-567812345678")
QUERY: Final = {"role": "user", "content": "q"}
SYSTEM: Final = {"role": "system", "content": "Be kind."}
TEA, ICE = "Tea is hot.", "Ice is cold."


class Call(NamedTuple):
    """One call and what follows from it."""

    name: str
    given: tuple[Any, ...]
    fields: dict[str, Any]
    arrives: dict[str, Any] | None
    reports: frozenset[str]


CALLS: list[Call] = []


def call(name: str, arrives: dict[str, Any] | None, /, *value: Any, reports: str = "", **fields: Any) -> None:
    """Add a call; `reports` lists reports with commas."""
    reasons = frozenset(report.strip() for report in reports.split(",") if report.strip())
    CALLS.append(Call(name, value, fields, arrives, reasons))


def each(group: str, name: str, forms: dict[str, tuple[Any, Any]], reports: str = "") -> None:
    """Add a call for each form of a field: the value given and the one that arrives, None if the field must not."""
    for form, (value, expected) in forms.items():
        arrives = {"output": "a"} if expected is None else {"output": "a", name: expected}
        call(f"{group}: {form}", arrives, reports=reports, output="a", **{name: value})


# --- positions and whole records -------------------------------------------------------------------------------------

call("two positions", {"input": "q", "output": "a"}, "q", "a")
call("two positions and fields", {"input": "q", "output": "a", "model": "m"}, "q", "a", model="m")
call("one position and the output", {"input": "q", "output": "a"}, "q", output="a")
call("three positions", {"input": "q", "output": "a", "context": ["d"]}, "q", "a", ["d"])
call(
    "four positions",
    {"input": "q", "output": "a", "context": ["d"], "tags": {"argument 4": "4"}},
    "q",
    "a",
    ["d"],
    4,
    reports="unknown_name argument 4",
)
call("a dict", {"input": "q", "output": "a"}, {"input": "q", "output": "a"})
call("a dict with other names", {"input": "q", "output": "a"}, {"question": "q", "answer": "a"})
call("a dict and fields", {"input": "q", "output": "a", "model": "m"}, {"input": "q", "output": "a"}, model="m")
call(
    "a dict with keys of other types",
    {"output": "a", "tags": {"1": "x"}},
    {"output": "a", 1: "x"},
    reports="unknown_name 1",
)
call("a dict as the input", {"input": '{"city":"Bonn"}', "output": "a"}, {"city": "Bonn"}, "a")
call("a trace", {"output": "a", "trace_id": "t"}, Trace(trace_id="t", service="s", output="a"))
call(
    "a trace and fields",
    {"output": "a", "trace_id": "t", "model": "m"},
    Trace(trace_id="t", service="s", output="a"),
    model="m",
)
call("a record of the service", {"input": "q", "output": "a"}, like.Model(input="q", output="a"))
call("a record as the input", {"input": '{"number":7,"place":"Bonn"}', "output": "a"}, like.Parcel(7, "Bonn"), "a")
call("only the query", {"input": "q", "output": ""}, "q", reports="missing output")
call("nothing", None, reports="empty trace")
call("only None", None, input=None, output=None, reports="empty trace")
call("only a model", None, model="m", reports="empty trace")
call("only an error", {"output": "", "error": "Timeout"}, error="Timeout")
# A failed call has no answer: that of the turn before is history.
_TURN: Final = [{"role": "user", "content": "q0"}, {"role": "assistant", "content": "a0"}]
for _given in ({"output": ""}, {"error": "Timeout"}, {"output": "", "error": "Timeout"}):
    call(
        f"no answer after a turn: {', '.join(_given)}",
        {"input": "q", "messages": _TURN, "output": "", **_given},
        "q",
        messages=_TURN,
        **_given,
    )
call("only documents", {"output": "", "context": ["d"]}, context=["d"], reports="missing output")

call("a list as the input", {"input": "q", "output": "a"}, ("q",), ["a"])
call("texts as the output", {"input": "q", "output": "a\nb"}, "q", ["a", "b"])
call(
    "an answer with objects",
    {"output": '{"text":"a","hits":[{"text":"d"}]}'},
    output=like.Plain(text="a", hits=[like.Plain(text="d"), object()]),
)
call(
    "a call of a tool with objects",
    {"output": "a", "tool_calls": [{"name": "search", "arguments": "x", "result": [{"text": "d"}]}]},
    output="a",
    tool_calls=[("search", "x", [like.Plain(text="d")])],
)
call(
    "a call of a tool without a result that can be read",
    {"output": "a", "tool_calls": [{"name": "search"}]},
    output="a",
    tool_calls=[("search", None, object())],
    reports="unreadable tool_calls.result",
)
call(
    "named pairs as documents",
    {"output": "a", "context": [{"text": "d", "score": 0.5}]},
    output="a",
    context=[like.Ranked(like.Plain(text="d"), 0.5)],
)

# --- texts -----------------------------------------------------------------------------------------------------------

TEXTS: Final[dict[str, tuple[Any, Any]]] = {
    "a string": ("x", "x"),
    "a whole number": (42, "42"),
    "a number": (1.5, "1.5"),
    "true": (True, "true"),
    "a decimal": (Decimal("9.90"), "9.90"),
    "a fraction": (Fraction(1, 3), "1/3"),
    "a complex number": (1 + 2j, "(1+2j)"),
    "a very large number": (10**50, f"{10**50}"),
    "infinity": (float("inf"), "Infinity"),
    "a UUID": (UID, str(UID)),
    "an exception": (ValueError("no tea"), "ValueError: no tea"),
    "a dict": ({"a": 1}, '{"a":1}'),
    "a list": (["a", 1], '["a",1]'),
    "a tuple": (("a", 1), '["a",1]'),
    "a set": ({"a"}, '["a"]'),
    "bytes": (b"caf\xc3\xa9", "café"),
    "bytes of no text": (b"\xff!", "\ufffd!"),
    "a bytearray": (bytearray(b"x"), "x"),
    "a dataclass": (like.Parcel(7, "Bonn"), '{"number":7,"place":"Bonn"}'),
    "a dataclass with a hidden field": (like.Keyed("n"), '{"name":"n"}'),
    "a struct": (like.Order(7, "Bonn"), '{"number":7,"place":"Bonn"}'),
    "a pydantic model": (like.Model(number=7), '{"number":7}'),
    "a model of pydantic 1": (like.ModelV1(number=7), '{"number":7}'),
    "an enumeration": (like.Colour.RED, "red"),
    "a date": (dt.date(2024, 2, 29), "2024-02-29"),
    "a path": (PurePosixPath("/srv/x"), "/srv/x"),
    "an object with a text": (like.Named(), "its text"),
    "a namespace": (like.namespace(a=1), '{"a":1}'),
    "an object without a text": (like.Plain(a=1, _b=2), '{"a":1}'),
    "half a surrogate pair": ("tea \ud83c", "tea ?"),
    "a number that is no number": ({"a": float("nan")}, '{"a":null}'),
    "keys of other types": ({1: "a", None: "b"}, '{"1":"a","null":"b"}'),
    "nested objects": ({"p": like.Parcel(1, "B"), "u": UID}, f'{{"p":{{"number":1,"place":"B"}},"u":"{UID}"}}'),
    "a read-only dict": (MappingProxyType({"a": 1}), '{"a":1}'),
    "a dict of the service": (UserDict({"a": 1}), '{"a":1}'),
    "a number of numpy": (like.Number(3), "3"),
    "an array": (like.Array([1, 2]), "[1,2]"),
}
for _form, (_value, _wanted) in TEXTS.items():
    call(f"output: {_form}", {"input": "q", "output": _wanted}, input="q", output=_value)
for _form in ("a whole number", "a dict", "an exception", "bytes", "a dataclass", "a UUID", "a pydantic model"):
    _value, _wanted = TEXTS[_form]
    call(f"input: {_form}", {"input": _wanted, "output": "a"}, input=_value, output="a")
    call(f"expected: {_form}", {"expected_response": _wanted, "output": "a"}, expected_response=_value, output="a")
each(
    "error",
    "error",
    {
        "an exception": (KeyError("k"), "KeyError: 'k'"),
        "an exception without words": (TimeoutError(), "TimeoutError"),
        "true": (True, "error"),
        "false": (False, None),
        "an empty text": ("", None),
        "a number": (500, "500"),
        "a dict": ({"code": 429}, '{"code":429}'),
        # A failed call must not look like one with an empty answer.
        "a class": (TimeoutError, "TimeoutError"),
        "an object": (object(), "object"),
    },
)

# --- answers and queries of libraries --------------------------------------------------------------------------------

for _form, _value in {
    "of OpenAI's message": like.openai_message("Hot."),
    "of Anthropic's content": like.anthropic_message("Hot.").content,
    "of OpenAI's output": like.openai_response("Hot.").output,
    "of Google": like.gemini_response("Hot."),
    "of LangChain": like.langchain_message("ai", "Hot.", tool_calls=[]),
    "of LangChain in parts": like.langchain_message("ai", [{"type": "text", "text": "Hot."}], tool_calls=[]),
    "of a message": {"role": "assistant", "content": "Hot."},
    "of LlamaIndex": like.LlamaResponse("Hot."),
    "of LlamaIndex's chat": like.Model(message=like.llama_message("assistant", "Hot."), raw=None, delta=None),
    "of LlamaIndex's completion": like.Model(text="Hot.", additional_kwargs={}, raw=None, logprobs=None, delta=None),
    "of Haystack": like.HaystackMessage("assistant", [like.HaystackText("Hot.")]),
    "of Ollama": {"model": "l", "response": "Hot.", "done": True},
    "of Amazon": {
        "output": {"message": {"role": "assistant", "content": [{"text": "Hot."}]}},
        "stopReason": "end_turn",
    },
}.items():
    call(f"answer {_form}", {"input": "q", "output": "Hot."}, "q", _value)
_ANSWERED: Final = {"input": "q", "output": "Hot.", "usage": {"input_tokens": 12, "output_tokens": 3}}
for _form, _value, _wanted in [
    ("OpenAI", like.openai_completion("Hot."), {"response_id": "chatcmpl-1", "model": "gpt-x"}),
    ("OpenAI as a dict", like.openai_completion("Hot.").model_dump(), {"response_id": "chatcmpl-1", "model": "gpt-x"}),
    ("Anthropic", like.anthropic_message("Hot."), {"response_id": "msg_1", "model": "claude-x"}),
]:
    call(f"response of {_form}", {**_ANSWERED, **_wanted}, "q", _value)
    call(f"response of {_form} and a model", {**_ANSWERED, **_wanted, "model": "m"}, "q", _value, model="m")
call(
    "response of OpenAI's responses",
    {"input": "q", "output": "Hot.", "response_id": "resp_1", "model": "gpt-x"},
    "q",
    like.openai_response("Hot."),
)
# The results of chains: the answer with its documents.
for _form, _value, _tags in [
    ("of LangChain", {"input": "q", "context": [like.langchain(TEA)], "answer": "Hot."}, {}),
    ("of LangChain's older chains", {"query": "q", "result": "Hot.", "source_documents": [like.langchain(TEA)]}, {}),
    ("of LangGraph", {"question": "q", "documents": [like.langchain(TEA)], "generation": "Hot."}, {}),
    ("of the service", {"answer": "Hot.", "documents": [{"text": TEA}], "steps": 2}, {"tags": {"steps": "2"}}),
]:
    call(
        f"result {_form}",
        {"input": "q", "output": "Hot.", "context": [{"text": TEA}], **_tags},
        "q",
        _value,
        reports="unknown_name steps" if _tags else "",
    )
call(
    "a result with names of sources",
    {"input": "q", "output": '{"answer":"Hot.","sources":["tea.md"]}'},
    "q",
    {"answer": "Hot.", "sources": ["tea.md"]},
)
call(
    "answer of LlamaIndex with its sources",
    {"input": "q", "output": "Hot.", "context": [{"text": TEA, "id": "n1", "score": 0.5}]},
    "q",
    like.LlamaResponse("Hot.", [like.llama_index(TEA, "n1", 0.5)]),
)
call("a query as messages", {"input": "q", "output": "a", "messages": [SYSTEM]}, [SYSTEM, QUERY], "a")
call("a query as one message", {"input": "q", "output": "a"}, input=[QUERY], output="a")
call("a prompt as messages", {"input": "q", "output": "a", "messages": [SYSTEM]}, prompt=[SYSTEM, QUERY], output="a")
for _form, _value in {
    "LlamaIndex": [like.llama_message("system", "Be kind."), like.llama_message("user", "q")],
    "Haystack": [
        like.HaystackMessage("system", [like.HaystackText("Be kind.")]),
        like.HaystackMessage("user", [like.HaystackText("q")]),
    ],
    "capital letters": [{"Role": "system", "Content": "Be kind."}, {"Role": "user", "Content": "q"}],
}.items():
    call(f"a query of {_form}", {"input": "q", "output": "a", "messages": [SYSTEM]}, _value, "a")
call(
    "a query as parts",
    {"input": "Look\n[image]", "output": "a"},
    [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
    "a",
)
call(
    "a query of LangChain",
    {"input": "q", "output": "a", "messages": [SYSTEM]},
    [like.langchain_message("system", "Be kind."), like.langchain_message("human", "q")],
    "a",
)

# --- ids and names ---------------------------------------------------------------------------------------------------

call("trace id: a number", {"output": "a", "trace_id": "7"}, output="a", trace_id=7)
call("trace id: a UUID", {"output": "a", "trace_id": str(UID)}, output="a", trace_id=UID)
call("trace id: of OpenTelemetry", {"output": "a", "trace_id": f"{1 << 100:032x}"}, output="a", trace_id=1 << 100)
call("trace id: bytes", {"output": "a", "trace_id": "t-1"}, output="a", trace_id=b"t-1")
call("trace id: in camel case", {"output": "a", "trace_id": "t-1"}, output="a", traceId="t-1")
call("trace id: empty", {"output": "a"}, output="a", trace_id="")
call(
    "trace id: too long",
    {"output": "a", "trace_id": "t" * 111 + "~d37dad94a2f4b088"},
    output="a",
    trace_id="t" * 200,
    reports="too_long trace_id",
)
call("span id: a number", {"output": "a", "span_id": "00000000000000ff"}, output="a", span_id=255)
call("publication id: a number", {"output": "a", "id": "8"}, output="a", id=8)
each("user", "user_id", {"a number": (17, "17"), "a UUID": (UID, str(UID)), "empty": ("", None), "None": (None, None)})
# The other parts of an object may be personal data, and ids are not redacted.
_PERSON: Final = {"id": 17, "email": "SECRET", "password_hash": "SECRET"}
each(
    "user",
    "user_id",
    {"a dict": (_PERSON, "17"), "an object": (like.Plain(**_PERSON), "17"), "a model": (like.Model(**_PERSON), "17")},
)
each("user", "user_id", {"an object without an id": (like.Plain(email="SECRET"), None)}, reports="unreadable user_id")
each("session", "session_id", {"a number": (17, "17"), "a UUID": (UID, str(UID)), "a pair": (("a", 1), '["a",1]')})
each("response", "response_id", {"a number": (17, "17")})
each("name", "name", {"an enumeration": (like.Colour.RED, "red"), "a number": (1, "1")})
each(
    "model",
    "model",
    {
        "an enumeration": (like.Colour.RED, "red"),
        "an object": (like.Named(), "its text"),
        "a dict": ({"name": "m"}, "m"),
    },
)
each("provider", "provider", {"bytes": (b"openai", "openai")})
each("release", "release", {"a number": (1.5, "1.5")})
each("environment", "environment", {"an enumeration": (like.Colour.RED, "red")})
call("service: a number", {"output": "a", "service": "7"}, output="a", service=7)
call(
    "user: too long",
    {"output": "a", "user_id": "u" * 183 + "~beb0af38b32a4ede"},
    output="a",
    user_id="u" * 300,
    reports="too_long user_id",
)

# --- times -----------------------------------------------------------------------------------------------------------

each(
    "start",
    "started_at",
    {
        "a number": (T, T),
        "a whole number": (int(T), T),
        "a number as text": ("1700000000.5", T + 0.5),
        "a decimal": (Decimal("1700000000.5"), T + 0.5),
        "a number of numpy": (like.Number(T), T),
        "a time with its zone": (AWARE, T),
        "a local time": (LOCAL, T),
        "ISO in UTC": (f"{ISO}Z", T),
        "ISO with an offset": ("2023-11-15T00:13:20+02:00", T),
        "ISO with an offset without colon": ("2023-11-15T00:13:20+0200", T),
        "ISO with a fraction": (f"{ISO}.5Z", T + 0.5),
        "ISO with nanoseconds": (f"{ISO}.500000000Z", T + 0.5),
        "ISO with a blank": (f"{ISO.replace('T', ' ')}+00:00", T),
        "ISO without a zone": (LOCAL.isoformat(), T),
        "milliseconds": (int(T) * 1_000, T),
        "microseconds as text": (str(int(T) * 1_000_000), T),
        "nanoseconds": (int(T) * 1_000_000_000, T),
        "a leap second": ("2016-12-31T23:59:60Z", 1_483_228_800.0),
        "a date": (dt.date(2024, 2, 29), dt.datetime(2024, 2, 29).timestamp()),  # noqa: DTZ001 - local
        "None": (None, None),
        "an empty text": ("", None),
    },
)
each(
    "start",
    "started_at",
    {
        "words": ("yesterday", None),
        "true": (True, None),
        "another century": (5_000_000_000, None),
        "no number": (float("nan"), None),
        "a list": ([T], None),
    },
    reports="unreadable started_at",
)
call("both times", {"output": "a", "started_at": T, "ended_at": T + 1}, output="a", started_at=AWARE, ended_at=T + 1)

# --- usage and feedback ----------------------------------------------------------------------------------------------

_USED: Final = {"input_tokens": 12, "output_tokens": 3}
each(
    "usage",
    "usage",
    {
        "a struct": (Usage(12, 3), _USED),
        "of OpenAI": ({"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}, _USED),
        "of OpenAI as an object": (like.Model(completion_tokens=3, prompt_tokens=12, total_tokens=15), _USED),
        "as texts": ({"input_tokens": "12", "output_tokens": "3"}, _USED),
        "as numbers with a point": ({"input_tokens": 12.0, "output_tokens": 3.0}, _USED),
        "of numpy": ({"input_tokens": like.Number(12), "output_tokens": like.Number(3)}, _USED),
        "in camel case": ({"inputTokens": 12, "outputTokens": 3, "totalTokens": 15}, _USED),
        "of Google": (like.namespace(prompt_token_count=12, candidates_token_count=3), _USED),
        "of Ollama": ({"prompt_eval_count": 12, "eval_count": 3}, _USED),
        "a pair": ((12, 3), _USED),
        "a list": ([12, 3], _USED),
        "of Anthropic with its cache": (
            {"input_tokens": 2, "cache_read_input_tokens": 9, "cache_creation_input_tokens": 1, "output_tokens": 3},
            _USED,
        ),
        "only input": ({"prompt_tokens": 12}, {"input_tokens": 12}),
        "an empty dict": ({}, None),
    },
)
each(
    "usage",
    "usage",
    {"one number": (15, None), "words": ("many", None), "negative": ({"input_tokens": -1}, None)},
    reports="unreadable usage",
)
call(
    "usage: one count unreadable",
    {"output": "a", "usage": {"output_tokens": 3}},
    output="a",
    usage={"input_tokens": "many", "output_tokens": 3},
    reports="unreadable usage.input_tokens",
)
call("usage: at the top", {"output": "a", "usage": _USED}, output="a", prompt_tokens=12, completion_tokens="3")
each(
    "feedback",
    "feedback",
    {
        "a struct": (Feedback(1), {"score": 1.0}),
        "a number": (-1, {"score": -1.0}),
        "a number as text": ("0.5", {"score": 0.5}),
        "a number with a sign": ("+1", {"score": 1.0}),
        "a decimal": (Decimal("0.5"), {"score": 0.5}),
        "of numpy": (like.Number(1), {"score": 1.0}),
        "thumbs up": (True, {"score": 1.0}),
        "thumbs down": (False, {"score": -1.0}),
        "a dict": ({"score": 1, "comment": "good"}, {"score": 1.0, "comment": "good"}),
        "a dict of texts": ({"score": "1", "comment": 5}, {"score": 1.0, "comment": "5"}),
        "other names": ({"value": 1, "text": "good"}, {"score": 1.0, "comment": "good"}),
        "an object": (like.Model(score=1, comment=None), {"score": 1.0}),
    },
)
each(
    "feedback",
    "feedback",
    {
        "words": ("good", None),
        "too large": (5, None),
        "no number": (float("nan"), None),
        "a comment alone": ({"comment": "good"}, None),
    },
    reports="unreadable feedback",
)

# --- documents -------------------------------------------------------------------------------------------------------

_TEA = {"text": TEA}
_WHOLE = {"text": TEA, "id": "a", "score": 0.5, "source": "tea.md"}
each(
    "documents",
    "context",
    {
        "texts": ([TEA, ICE], [TEA, ICE]),
        "one text": (TEA, [TEA]),
        "a tuple of texts": ((TEA, ICE), [TEA, ICE]),
        "a deque of texts": (deque([TEA]), [TEA]),
        "values of a dict": ({"a": TEA}.values(), [TEA]),
        "a generator": ((text for text in [TEA, ICE]), [TEA, ICE]),
        "a map": (map(str.strip, [f" {TEA} "]), [TEA]),
        "an array of texts": (like.Array([TEA]), [TEA]),
        "a struct": ([Document(TEA, "a", 0.5)], [{"text": TEA, "id": "a", "score": 0.5}]),
        "the wire form": ([{"text": TEA, "id": "a", "score": 0.5}], [{"text": TEA, "id": "a", "score": 0.5}]),
        "one dict": ({"text": TEA}, [_TEA]),
        "page_content": ([{"page_content": TEA}], [_TEA]),
        "content": ([{"content": TEA}], [_TEA]),
        "pageContent of LangChain.js": (
            [{"pageContent": TEA, "metadata": {"source": "tea.md"}}],
            [{"text": TEA, "source": "tea.md"}],
        ),
        "capital letters": ([{"Text": TEA, "Id": "a", "Score": 0.5, "Source": "tea.md"}], [_WHOLE]),
        "document": ([{"document": TEA}], [_TEA]),
        "body": ([{"body": TEA}], [_TEA]),
        "chunk": ([{"chunk": TEA}], [_TEA]),
        "a null before the text": ([{"text": None, "page_content": TEA}], [_TEA]),
        "id, score, source": ([{"text": TEA, "id": "a", "score": 0.5, "source": "tea.md"}], [_WHOLE]),
        "numbers as ids": ([{"text": TEA, "id": 7}], [{"text": TEA, "id": "7"}]),
        "a UUID as id": ([{"text": TEA, "id": UID}], [{"text": TEA, "id": str(UID)}]),
        "other names of ids": ([{"text": TEA, "doc_id": "a"}], [{"text": TEA, "id": "a"}]),
        "a score as text": ([{"text": TEA, "score": "0.5"}], [{"text": TEA, "score": 0.5}]),
        "a score of numpy": ([{"text": TEA, "score": like.Number(0.5)}], [{"text": TEA, "score": 0.5}]),
        "a score in words": ([{"text": TEA, "score": "high"}], [_TEA]),
        "other names of scores": ([{"text": TEA, "similarity": 0.5}], [{"text": TEA, "score": 0.5}]),
        "a URL as source": ([{"text": TEA, "url": "https://x.org/t"}], [{"text": TEA, "source": "https://x.org/t"}]),
        "a source in the metadata": (
            [{"content": TEA, "metadata": {"source": "tea.md"}}],
            [{"text": TEA, "source": "tea.md"}],
        ),
        "pairs with a score": ([(TEA, 0.5)], [{"text": TEA, "score": 0.5}]),
        "pairs with a score of numpy": ([(TEA, like.Number(0.5))], [{"text": TEA, "score": 0.5}]),
        "pairs as lists": ([[TEA, 0.5], [ICE, 0.25]], [{"text": TEA, "score": 0.5}, {"text": ICE, "score": 0.25}]),
        "pairs with the score first": ([(0.5, TEA)], [{"text": TEA, "score": 0.5}]),
        "named tuples": ([like.Hit(TEA, 0.5)], [{"text": TEA, "score": 0.5}]),
        "of LangChain": ([like.langchain(TEA, source="tea.md")], [{"text": TEA, "source": "tea.md"}]),
        "of LangChain with an id": ([like.langchain(TEA, id="a")], [{"text": TEA, "id": "a"}]),
        "of LangChain with scores": (
            [(like.langchain(TEA, source="tea.md"), 0.5)],
            [{"text": TEA, "score": 0.5, "source": "tea.md"}],
        ),
        "one of LangChain": (like.langchain(TEA), [_TEA]),
        "of LangChain's chain": ({"query": "q", "source_documents": [like.langchain(TEA)]}, [_TEA]),
        "of LlamaIndex": (
            [like.llama_index(TEA, "n1", 0.5, file_name="tea.md")],
            [{"text": TEA, "id": "n1", "score": 0.5, "source": "tea.md"}],
        ),
        "of LlamaIndex without a score": ([like.llama_index(TEA, "n1", None)], [{"text": TEA, "id": "n1"}]),
        "of LlamaIndex's answer": (
            like.LlamaResponse("a", [like.llama_index(TEA, "n1", 0.5)]),
            [{"text": TEA, "id": "n1", "score": 0.5}],
        ),
        "a node": ([{"node": {"text": TEA, "id_": "n1"}, "score": 0.5}], [{"text": TEA, "id": "n1", "score": 0.5}]),
        "of Qdrant": (
            [like.qdrant(TEA, 7, 0.5, source="tea.md")],
            [{"text": TEA, "id": "7", "score": 0.5, "source": "tea.md"}],
        ),
        "of Qdrant's answer": (
            like.Model(points=[like.qdrant(TEA, "a", 0.5)]),
            [{"text": TEA, "id": "a", "score": 0.5}],
        ),
        "of Qdrant in groups": (
            like.Model(groups=[like.Model(id="g", hits=[like.qdrant(TEA, "a", 0.5)])]),
            [{"text": TEA, "id": "a", "score": 0.5}],
        ),
        "of Qdrant with other columns": (
            [like.Model(id="a", score=0.5, payload={"title": "Tea", "state": "hot"})],
            [{"text": '{"title":"Tea","state":"hot"}', "id": "a", "score": 0.5}],
        ),
        "of Qdrant through LangChain": (
            [like.Model(id="a", score=0.5, payload={"page_content": TEA, "metadata": {"source": "tea.md"}})],
            [_WHOLE],
        ),
        "of Qdrant through FastEmbed": (
            [like.Model(id="a", document=TEA, metadata={"source": "tea.md"}, score=0.5)],
            [_WHOLE],
        ),
        "of Pinecone": (
            {"matches": [{"id": "a", "score": 0.5, "metadata": {"text": TEA, "source": "tea.md"}}], "namespace": ""},
            [_WHOLE],
        ),
        "of Pinecone as objects": (
            like.PineconeVector(
                matches=[like.PineconeVector(id="a", score=0.5, metadata={"text": TEA}, values=[])], namespace=""
            ),
            [{"text": TEA, "id": "a", "score": 0.5}],
        ),
        "of Pinecone's search": (
            {
                "result": {"hits": [{"_id": "a", "_score": 0.5, "fields": {"chunk_text": TEA}}]},
                "usage": {"read_units": 1},
            },
            [{"text": TEA, "id": "a", "score": 0.5}],
        ),
        "of Chroma's query": (
            like.CHROMA_QUERY,
            [{"text": TEA, "id": "a", "score": 0.75, "source": "tea.md"}, {"text": ICE, "id": "b", "score": 0.5}],
        ),
        "of Weaviate": (
            like.WeaviateReturn(
                [like.WeaviateObject(UID, like.WeaviateMetadata(certainty=0.5), {"content": TEA, "source": "tea.md"})]
            ),
            [{"text": TEA, "id": str(UID), "score": 0.5, "source": "tea.md"}],
        ),
        "of Weaviate with a distance": (
            [like.WeaviateObject(UID, like.WeaviateMetadata(distance=0.25), {"text": TEA})],
            [{"text": TEA, "id": str(UID), "score": 0.75}],
        ),
        "of Weaviate's GraphQL": (
            [{"content": TEA, "_additional": {"id": "a", "certainty": 0.5}}],
            [{"text": TEA, "id": "a", "score": 0.5}],
        ),
        "of Haystack": ([like.HaystackDocument("a", TEA, {"file_path": "tea.md"}, 0.5)], [_WHOLE]),
        "of Haystack's pipeline": ({"documents": [like.HaystackDocument("a", TEA)]}, [{"text": TEA, "id": "a"}]),
        "of Elasticsearch": (
            {"took": 3, "hits": {"total": 1, "hits": [{"_id": "a", "_score": 0.5, "_source": {"text": TEA}}]}},
            [{"text": TEA, "id": "a", "score": 0.5}],
        ),
        "of Milvus": (
            [{"id": 7, "distance": 0.25, "entity": {"text": TEA}}],
            [{"text": TEA, "id": "7", "score": 0.75}],
        ),
        "of Bedrock": (
            {"retrievalResults": [{"content": {"text": TEA, "type": "TEXT"}, "score": 0.5}]},
            [{"text": TEA, "score": 0.5}],
        ),
        "of OpenAI's vector store": (
            [{"file_id": "a", "filename": "tea.md", "score": 0.5, "content": [{"type": "text", "text": TEA}]}],
            [_WHOLE],
        ),
        "an object with text": ([like.Plain(text=TEA, score=0.5)], [{"text": TEA, "score": 0.5}]),
        "an object with slots": ([like.Slotted(TEA, "a")], [{"text": TEA, "id": "a"}]),
        "a namespace": ([like.namespace(page_content=TEA)], [_TEA]),
        "a data frame": (like.DataFrame([{"text": TEA, "score": 0.5}]), [{"text": TEA, "score": 0.5}]),
        "rows without a text": ([{"city": "Bonn", "price": 3}], [{"text": '{"city":"Bonn","price":3}'}]),
        "rows of a cursor": ([(7, TEA, 0.5)], [{"text": f'[7,"{TEA}",0.5]'}]),
        "a JSON text": ('[{"text": "Tea is hot."}]', ['[{"text": "Tea is hot."}]']),
        "several kinds": ([TEA, {"text": ICE}, (TEA, 1.0)], [TEA, {"text": ICE}, {"text": TEA, "score": 1.0}]),
        "lists of lists": ([[TEA, ICE]], [TEA, ICE]),
        "bytes": ([TEA.encode()], [TEA]),
        "numbers": ([7], ["7"]),
        "an empty list": ([], []),
        "None": (None, None),
    },
)
each(
    "documents without a text",
    "context",
    {
        "one of two": ([TEA, {"id": "b", "score": 0.5}], [TEA]),
        "an object": ([TEA, object()], [TEA]),
        "an empty text": ([TEA, {"text": ""}], [TEA]),
        "None": ([TEA, None], [TEA]),
        "a vector": ([TEA, {"id": "b", "values": [0.1, 0.2]}], [TEA]),
        "of Chroma": (like.CHROMA_GET, [{"text": TEA, "id": "a", "source": "tea.md"}]),
        "all": ([object()], None),
        "an object alone": (object(), None),
    },
    reports="no_text context",
)

# --- messages --------------------------------------------------------------------------------------------------------

_SAID = [SYSTEM, {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
for _form, _value, _wanted in [
    ("the wire form", _SAID, _SAID),
    ("structs", [Message("system", "Be kind.")], [SYSTEM]),
    ("a tuple", tuple(_SAID), _SAID),
    ("one message", SYSTEM, [SYSTEM]),
    ("null content", [{"role": "assistant", "content": None}, SYSTEM], [{"role": "assistant"}, SYSTEM]),
    ("other keys", [{**SYSTEM, "id": 7, "timestamp": "now"}], [SYSTEM]),
    (
        "a name",
        [{"role": "user", "content": "Hello", "name": "Ann"}],
        [{"role": "user", "content": "Hello", "name": "Ann"}],
    ),
    (
        "parts",
        [{"role": "user", "content": [{"type": "text", "text": "Look:"}, {"type": "text", "text": "tea"}]}],
        [{"role": "user", "content": "Look:\ntea"}],
    ),
    (
        "an image",
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "x"}}],
            }
        ],
        [{"role": "user", "content": "Look\n[image]"}],
    ),
    (
        "content of another type",
        [{"role": "user", "content": {"city": "Bonn"}}],
        [{"role": "user", "content": '{"city":"Bonn"}'}],
    ),
    ("of OpenAI", [like.openai_message("Hi")], [{"role": "assistant", "content": "Hi"}]),
    (
        "of LangChain",
        [like.langchain_message("human", "Hello"), like.langchain_message("ai", "Hi", tool_calls=[])],
        _SAID[1:],
    ),
    ("pairs", [("system", "Be kind."), ("human", "Hello"), ("ai", "Hi")], _SAID),
    (
        "of Google",
        [{"role": "user", "parts": [{"text": "Hello"}]}, {"role": "model", "parts": [{"text": "Hi"}]}],
        _SAID[1:],
    ),
    ("of Anthropic", [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}], _SAID[1:2]),
    ("one key a message", [{"user": "Hello"}, {"assistant": "Hi"}], _SAID[1:]),
    ("capital letters", [{"Role": "user", "Content": "Hello"}, {"Role": "assistant", "Content": "Hi"}], _SAID[1:]),
    ("of LlamaIndex", [like.llama_message("user", "Hello"), like.llama_message("assistant", "Hi")], _SAID[1:]),
    ("a speaker a key", {"user": "Hello", "assistant": "Hi"}, _SAID[1:]),
    ("as JSON", '[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]', _SAID[1:]),
    ("with the query too", [*_SAID, QUERY], _SAID),
    ("with query and answer too", [*_SAID, QUERY, {"role": "assistant", "content": "a"}], _SAID),
    ("of LangChain with the query too", [like.langchain_message("human", "q")], None),
    (
        "the query said before",
        [QUERY, {"role": "assistant", "content": "b"}],
        [QUERY, {"role": "assistant", "content": "b"}],
    ),
    ("a text", "Hello", [{"role": "user", "content": "Hello"}]),
    ("texts", ["Hello", "Hi"], [{"role": "user", "content": "Hello"}, {"role": "user", "content": "Hi"}]),
    ("sender and text", [{"sender": "user", "text": "Hello"}], _SAID[1:2]),
    (
        "a call of a tool",
        [
            *_SAID[1:2],
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "kb", "arguments": '{"q":"tea"}'}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": TEA},
        ],
        [_SAID[1], {"role": "assistant", "content": '[tool call kb {"q":"tea"}]'}, {"role": "tool", "content": TEA}],
    ),
    ("an empty list", [], None),
]:
    _arrives = {"input": "q", "output": "a"} | ({} if _wanted is None else {"messages": _wanted})
    call(f"messages: {_form}", _arrives, "q", "a", messages=_value)
call(
    "messages: no message", {"input": "q", "output": "a"}, "q", "a", messages=[object()], reports="unreadable messages"
)
call(
    "messages: other names",
    {"input": "q", "output": "a"},
    "q",
    "a",
    messages=[{"role": "user", "utterance": "Hello"}],
    reports="unreadable messages",
)
call(
    "messages: the same turn twice",
    {"input": "q", "output": "a", "messages": [QUERY, {"role": "assistant", "content": "a"}]},
    messages=[QUERY, {"role": "assistant", "content": "a"}] * 2,
)
call("messages: number", {"input": "q", "output": "a"}, "q", "a", messages=5, reports="unreadable messages")
call(
    "messages with the query", {"input": "q", "output": "a", "messages": [SYSTEM]}, messages=[SYSTEM, QUERY], output="a"
)
call(
    "messages with query and answer",
    {"input": "q", "output": "Hot.", "messages": [SYSTEM]},
    messages=[SYSTEM, QUERY, {"role": "assistant", "content": "Hot."}],
)
call(
    "messages with query, calls and answer",
    {"input": "q", "output": "Hot.", "tool_calls": [{"name": "kb", "arguments": {"q": "tea"}, "result": TEA}]},
    messages=[
        QUERY,
        {"role": "assistant", "content": None, "tool_calls": [like.openai_call("kb", '{"q":"tea"}').model_dump()]},
        {"role": "tool", "tool_call_id": "call_1", "content": TEA},
        {"role": "assistant", "content": "Hot."},
    ],
)
call("a system prompt", {"input": "q", "output": "a", "messages": [SYSTEM]}, "q", "a", system_prompt="Be kind.")
call(
    "a system prompt and messages",
    {"input": "q", "output": "a", "messages": [SYSTEM, *_SAID[1:]]},
    "q",
    "a",
    system="Be kind.",
    messages=_SAID[1:],
)

# --- tool calls and spans --------------------------------------------------------------------------------------------

_CALL = {"name": "kb", "arguments": {"q": "tea"}}
_DONE = {**_CALL, "result": TEA}
each(
    "tool calls",
    "tool_calls",
    {
        "the wire form": ([_DONE], [_DONE]),
        "a struct": ([ToolCall("kb", {"q": "tea"}, TEA)], [_DONE]),
        "one call": (_DONE, [_DONE]),
        "of OpenAI": ([like.openai_call("kb", '{"q":"tea"}')], [_CALL]),
        "of OpenAI as dicts": (
            [{"id": "c", "type": "function", "function": {"name": "kb", "arguments": '{"q":"tea"}'}}],
            [_CALL],
        ),
        "of LangChain": ([{"name": "kb", "args": {"q": "tea"}, "id": "c", "type": "tool_call"}], [_CALL]),
        "of Anthropic": ([{"type": "tool_use", "id": "c", "name": "kb", "input": {"q": "tea"}}], [_CALL]),
        "of LlamaIndex": ([like.Model(tool_id="c", tool_name="kb", tool_kwargs={"q": "tea"})], [_CALL]),
        "of LangChain's agents": ([(like.Model(tool="kb", tool_input={"q": "tea"}, log=""), TEA)], [_DONE]),
        "capital letters": ([{"Name": "kb", "Arguments": {"q": "tea"}, "Result": TEA}], [_DONE]),
        "names and arguments": ([("kb", {"q": "tea"})], [_CALL]),
        "names, arguments and results": ([("kb", {"q": "tea"}, TEA)], [_DONE]),
        "a JSON text": ('[{"name": "kb", "arguments": {"q": "tea"}}]', [_CALL]),
        "arguments as JSON": ([{"name": "kb", "arguments": '{"q":"tea"}'}], [_CALL]),
        "arguments as text": ([{"name": "kb", "arguments": "tea"}], [{"name": "kb", "arguments": "tea"}]),
        "objects as arguments": (
            [{"name": "kb", "arguments": like.Parcel(7, "B")}],
            [{"name": "kb", "arguments": {"number": 7, "place": "B"}}],
        ),
        "an exception": ([{**_CALL, "error": ValueError("no")}], [{**_CALL, "error": "ValueError: no"}]),
        "other names of results": ([{**_CALL, "output": TEA}], [_DONE]),
        "documents as results": (
            [{**_CALL, "result": [like.langchain(TEA)]}],
            [{**_CALL, "result": [{"id": None, "metadata": {}, "page_content": TEA, "type": "Document"}]}],
        ),
        "bytes as results": ([{**_CALL, "result": TEA.encode()}], [_DONE]),
        "names alone": (["kb", "mail"], [{"name": "kb"}, {"name": "mail"}]),
        "an empty list": ([], []),
    },
)
each(
    "tool calls",
    "tool_calls",
    {"a number": (5, None), "an object": ([object()], None)},
    reports="unreadable tool_calls",
)
_SPAN = {"span_id": "00000000000000aa", "name": "search"}
each(
    "spans",
    "spans",
    {
        "the wire form": ([{**_SPAN, "started_at": T}], [{**_SPAN, "started_at": T}]),
        "a struct": ([Span("00000000000000aa", "search")], [_SPAN]),
        "times of other types": (
            [{**_SPAN, "started_at": AWARE, "ended_at": f"{ISO}Z"}],
            [{**_SPAN, "started_at": T, "ended_at": T}],
        ),
        "other names": (
            [{**_SPAN, "parentId": "b", "type": "tool", "input": {"q": 1}, "output": TEA, "start_time": T}],
            [{**_SPAN, "parent_id": "b", "kind": "tool", "inputs": {"q": 1}, "outputs": TEA, "started_at": T}],
        ),
        "objects": ([{**_SPAN, "inputs": like.Parcel(7, "B")}], [{**_SPAN, "inputs": {"number": 7, "place": "B"}}]),
        "unknown names": ([{**_SPAN, "cost": 3}], [{**_SPAN, "attributes": {"cost": 3}}]),
        "a number as id": ([{"span_id": 170, "name": "search"}], [_SPAN]),
    },
)
each("spans", "spans", {"a text": ("search", None)}, reports="unreadable spans")

# --- lists of texts, tags, other names -------------------------------------------------------------------------------

for _field in ("guidelines", "expected_facts"):
    each(
        _field,
        _field,
        {
            "one text": ("x", ["x"]),
            "a tuple": (("x", "y"), ["x", "y"]),
            "numbers": ([1, 2.5], ["1", "2.5"]),
            "dicts with a text": ([{"text": "x"}], ["x"]),
            "other dicts": ([{"a": 1}], ['{"a":1}']),
            "None within": (["x", None], ["x"]),
            "a set": ({"x"}, ["x"]),
            "values": ({1: "x"}.values(), ["x"]),
        },
    )
each(
    "tags",
    "tags",
    {
        "texts": ({"plan": "gold"}, {"plan": "gold"}),
        "values": ({"a": 1, "b": True, "c": [1], "d": {"e": 2}}, {"a": "1", "b": "true", "c": "[1]", "d": '{"e":2}'}),
        "keys of other types": ({1: "x"}, {"1": "x"}),
        "None": ({"a": None, "b": "x"}, {"b": "x"}),
        "objects": ({"a": UID, "b": like.Colour.RED}, {"a": str(UID), "b": "red"}),
        "a list": (["beta", "eu"], {"beta": "true", "eu": "true"}),
        "a set": ({"beta"}, {"beta": "true"}),
        "one text": ("beta", {"beta": "true"}),
        "pairs": ([("plan", "gold")], {"plan": "gold"}),
        "texts with a colon": (["plan:gold"], {"plan": "gold"}),
        "a defaultdict": (defaultdict(str, plan="gold"), {"plan": "gold"}),
        "an ordered dict": (OrderedDict(plan="gold"), {"plan": "gold"}),
        "a model": (like.Model(plan="gold"), {"plan": "gold"}),
        "an empty dict": ({}, None),
    },
)
call("tags: an object", {"output": "a"}, output="a", tags=object(), reports="unreadable tags")
call(
    "tags: an object within",
    {"output": "a", "tags": {"b": "x"}},
    output="a",
    tags={"a": object(), "b": "x"},
    reports="unreadable tags",
)
for _field, _names in {
    "input": "prompt question query user_input user_message input_text",
    "output": "answer response completion reply generation output_text model_output",
    "expected_response": "expected_output expected_answer ground_truth reference expected reference_answer",
    "model": "model_name model_id",
    "session_id": "session conversation_id thread_id sessionId",
    "user_id": "user end_user_id userId",
    "name": "operation operation_name",
    "environment": "env",
    "release": "version app_version",
    "error": "exception error_message",
}.items():
    for _name in _names.split():
        if _field == "input":
            call(f"another name: {_name}", {"input": "x", "output": "a"}, output="a", **{_name: "x"})
        elif _field == "output":
            call(f"another name: {_name}", {"output": "x"}, **{_name: "x"})
        else:
            call(f"another name: {_name}", {"output": "a", _field: "x"}, output="a", **{_name: "x"})
for _name in (
    *("contexts", "documents", "docs", "retrieved_documents", "retrieved_contexts", "retrieval_context", "chunks"),
    *("source_documents", "source_nodes", "sources", "passages", "search_results"),
):
    call(f"another name: {_name}", {"output": "a", "context": ["x"]}, output="a", **{_name: ["x"]})
for _name in ("history", "chat_history", "conversation"):
    call(f"another name: {_name}", {"input": "q", "output": "a", "messages": _SAID}, "q", "a", **{_name: _SAID})
for _name in ("metadata", "labels", "extra"):
    call(f"another name: {_name}", {"output": "a", "tags": {"x": "1"}}, output="a", **{_name: {"x": 1}})
for _name in ("start_time", "startTime", "start"):
    call(f"another name: {_name}", {"output": "a", "started_at": T}, output="a", **{_name: T})
call("another name: token_usage", {"output": "a", "usage": _USED}, output="a", token_usage=_USED)
call("another name: user_feedback", {"output": "a", "feedback": {"score": 1.0}}, output="a", user_feedback=1)
call("tags and metadata", {"output": "a", "tags": {"a": "1", "b": "2"}}, output="a", tags={"a": 1}, metadata={"b": 2})
call(
    "a field and its other name",
    {"input": "q", "output": "a", "tags": {"question": "p"}},
    input="q",
    question="p",
    output="a",
    reports="second_name question",
)
call("a field and its other name alike", {"input": "q", "output": "a"}, input="q", question="q", output="a")
call(
    "names in the order of the alphabet",
    {"input": "q", "output": "a", "tags": {"prompt": "p"}},
    answer="a",
    prompt="p",
    question="q",
    reports="second_name prompt",
)
call("names with dots", {"output": "a", "user_id": "u"}, output="a", **{"user.id": "u"})
call("a field of None and its other name", {"input": "q", "output": "a"}, input=None, question="q", output="a")
call("an unknown name", {"output": "a", "tags": {"shop": "7"}}, output="a", shop=7, reports="unknown_name shop")
call("a misspelt name", {"output": "a", "tags": {"contxt": "x"}}, output="a", contxt="x", reports="unknown_name contxt")
call(
    "only a misspelt name",
    {"output": "", "tags": {"outptu": "x"}},
    outptu="x",
    reports="unknown_name outptu, missing output",
)
call(
    "an unknown name and tags",
    {"output": "a", "tags": {"a": "1", "shop": "7"}},
    output="a",
    tags={"a": 1},
    shop=7,
    reports="unknown_name shop",
)
call("an unknown name of None", {"output": "a"}, output="a", shop=None)
call(
    "an object under an unknown name",
    {"output": "a"},
    output="a",
    shop=object(),
    reports="unknown_name shop, unreadable shop",
)


async def _never() -> str:
    return "a"


def _lazy() -> Any:
    coroutine = _never()
    coroutine.close()
    return coroutine


call("a coroutine", {"input": "q", "output": ""}, "q", _lazy(), reports="unreadable output, missing output")
call(
    "a stream",
    {"input": "q", "output": ""},
    "q",
    (piece for piece in "ab"),
    reports="unreadable output, missing output",
)
call("an object", {"input": "q", "output": ""}, "q", object(), reports="unreadable output, missing output")
