"""What the tools are called, what they take and what they are good for, in words for the model that calls them."""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from judges.models.model import Tool

__all__ = [
    "ARGUMENTS",
    "TOOLS",
    "ListSpans",
    "NoArguments",
    "ReadRootSpan",
    "ReadSpan",
    "SearchTrace",
]

_AttributesToFetch = Annotated[
    list[str] | UnsetType,
    Meta(description="Names of the attributes to show; without it all are shown. Inputs and outputs always are."),
]
_MaxContentLength = Annotated[
    int, Meta(ge=100, le=200_000, description="How many bytes of the content to give at most; the rest by page_token.")
]
_PageToken = Annotated[
    str | UnsetType,
    Meta(description="Where to go on: the page_token of an earlier result, unchanged. Leave it out to begin."),
]


class NoArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What a tool takes that takes nothing."""


class ReadRootSpan(Struct, frozen=True, forbid_unknown_fields=True):
    """What ``get_root_span`` takes."""

    attributes_to_fetch: _AttributesToFetch = UNSET
    max_content_length: _MaxContentLength = 100_000
    page_token: _PageToken = UNSET


class ReadSpan(Struct, frozen=True, forbid_unknown_fields=True):
    """What ``get_span`` takes."""

    span_id: Annotated[str, Meta(description="The id of the span, as list_spans gives it.")]
    attributes_to_fetch: _AttributesToFetch = UNSET
    max_content_length: _MaxContentLength = 100_000
    page_token: _PageToken = UNSET


class ListSpans(Struct, frozen=True, forbid_unknown_fields=True):
    """What ``list_spans`` takes."""

    max_results: Annotated[int, Meta(ge=1, le=500, description="How many spans to list at most.")] = 100
    page_token: _PageToken = UNSET


class SearchTrace(Struct, frozen=True, forbid_unknown_fields=True):
    """What ``search_trace_regex`` takes."""

    pattern: Annotated[
        str, Meta(description="A regular expression as in Python; upper and lower case are alike. Keep it simple.")
    ]
    max_matches: Annotated[int, Meta(ge=1, le=200, description="How many matches to give at most.")] = 50
    surrounding_content_length: Annotated[
        int, Meta(ge=0, le=1000, description="How many bytes of text to give before and behind each match.")
    ] = 100
    page_token: _PageToken = UNSET


ARGUMENTS: Final[Mapping[str, type[Struct]]] = {
    "get_trace_info": NoArguments,
    "get_root_span": ReadRootSpan,
    "get_span": ReadSpan,
    "list_spans": ListSpans,
    "search_trace_regex": SearchTrace,
    "get_span_performance_and_timing_report": NoArguments,
}
"""The tools, each with the type of its arguments."""

_DESCRIPTIONS: Final[Mapping[str, str]] = {
    "get_trace_info": (
        "Gives an overview of the trace: its ids, service, start and end, status, model, tokens used, and the number "
        "of its spans. A good first call."
    ),
    "get_root_span": (
        "Gives the content of the root span, the step that stands for the whole query, with its inputs, outputs and "
        "attributes. `content` is JSON as text. Where it is longer than max_content_length, page_token is given: call "
        "again with it until it is null, and put the pieces together. content_size_bytes is the size of all of it."
    ),
    "get_span": (
        "Gives the content of one span, with its inputs, outputs and attributes, in the same form as get_root_span. "
        'The id "trace" gives what the trace holds outside of its spans: the query, the conversation before it, '
        "retrieved documents, the answer, tool calls, an error."
    ),
    "list_spans": (
        "Lists the spans without their content, in the order in which they began: id, name, kind, start_s and end_s "
        "in seconds since the trace began, duration_s, parent_id, status, is_root, and the names of their attributes. "
        "Where there are more, page_token is given: call again with it."
    ),
    "search_trace_regex": (
        "Finds text anywhere in the trace by a regular expression. Each match comes with the text around it, the id of "
        "its span, and a page_token by which get_span goes on reading at the match. The span is written as JSON with "
        "line breaks and quotation marks as they are; a match longer than 4000 bytes may be missed. Words such as "
        "error|exception|timeout|failed find what went wrong. Where more is to be searched, as there are more matches "
        "or time ran out (`stopped`), a page_token stands beside `matches`: call again with the same pattern and it."
    ),
    "get_span_performance_and_timing_report": (
        "Tells where the time went, in seconds: the slowest spans, those that took longest by themselves (self_s is "
        "the time of a span without that of the spans below it), time by kind of span, and spans that ran at the same "
        "time."
    ),
}


def _tool(name: str, arguments: type[Struct]) -> Tool:
    _, components = msgspec.json.schema_components([arguments])
    schema = components[arguments.__name__]
    shown = {key: schema[key] for key in ("type", "properties", "required", "additionalProperties")}
    return Tool(name, _DESCRIPTIONS[name], shown)


TOOLS: Final = tuple(_tool(name, arguments) for name, arguments in ARGUMENTS.items())
"""The tools as a model is told of them."""
