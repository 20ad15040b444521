"""The tools over one trace, called by name, with the times of its steps."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from judges.agent import spans as overview
from judges.agent.arguments import PageToken, ToolError, offset_of, read
from judges.agent.patterns import CLOCKS, Clocks, Pieces, SearchBudget, SearchTrace, search
from judges.agent.spans import Step, Steps, as_json, page, rounded, short
from judges.core.model import Tool
from tracejudge import Trace

_LISTED: Final = 10
_AttributesToFetch = Annotated[
    list[str] | UnsetType,
    Meta(description="Names of the attributes to show; without it all are shown. Inputs and outputs always are."),
]
_MaxContentLength = Annotated[
    int, Meta(ge=100, le=200_000, description="How many bytes of the content to give at most; the rest by page_token.")
]


class NoArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of a tool without any."""


class ReadRootSpan(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of ``get_root_span``."""

    attributes_to_fetch: _AttributesToFetch = UNSET
    max_content_length: _MaxContentLength = 100_000
    page_token: PageToken = UNSET


class ReadSpan(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of ``get_span``."""

    span_id: Annotated[str, Meta(description="The id of the span, as list_spans gives it.")]
    attributes_to_fetch: _AttributesToFetch = UNSET
    max_content_length: _MaxContentLength = 100_000
    page_token: PageToken = UNSET


class ListSpans(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of ``list_spans``."""

    max_results: Annotated[int, Meta(ge=1, le=500, description="How many spans to list at most.")] = 100
    page_token: PageToken = UNSET


ARGUMENTS: Final[Mapping[str, type[Struct]]] = {
    "get_trace_info": NoArguments,
    "get_root_span": ReadRootSpan,
    "get_span": ReadSpan,
    "list_spans": ListSpans,
    "search_trace_regex": SearchTrace,
    "get_span_performance_and_timing_report": NoArguments,
}
"""The type of each tool's arguments."""
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


def _schema(arguments: type[Struct]) -> dict[str, object]:
    _, components = msgspec.json.schema_components([arguments])
    # Without the docstring: what a model reads belongs to the judge's version.
    schema = components[arguments.__name__]
    return {key: schema[key] for key in ("type", "properties", "required", "additionalProperties")}


TOOLS: Final = tuple(Tool(name, _DESCRIPTIONS[name], _schema(form)) for name, form in ARGUMENTS.items())
"""The tools as they are described to a model."""
_FAILED: Final = "This tool cannot read this trace. Use another one, or answer with what you know."


class TraceToolbox:
    """The six tools over one trace, for one thread at a time; encoded spans are kept (see ``Pieces``)."""

    def __init__(self, trace: Trace, clocks: Clocks = CLOCKS) -> None:
        self._trace = trace
        self._steps = Steps(trace)
        self._pieces = Pieces()
        searched = (*self._steps, *((self._steps.record,) if self._steps.are_recorded else ()))
        self._calls: Mapping[str, Callable[[Any], dict[str, object]]] = {
            "get_trace_info": lambda _: overview.info(trace, self._steps),
            "get_root_span": self._read_root,
            "get_span": lambda request: self._read(self._steps.find(request.span_id), request),
            "list_spans": lambda request: overview.listed(
                self._steps, offset_of(request.page_token, len(self._steps)), request.max_results
            ),
            "search_trace_regex": lambda request: search(searched, self._pieces, request, SearchBudget(clocks)),
            "get_span_performance_and_timing_report": lambda _: report(self._steps),
        }

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools as they are described to a model."""
        return TOOLS

    def call(self, name: str, arguments: str) -> str:
        """Call a tool, within about a second; return its JSON, or what is wrong under ``error``. Nothing is raised."""
        if name not in self._calls:
            return as_json({"error": f"There is no tool `{short(name, 80)}`. Tools are: {', '.join(self._calls)}."})
        try:
            return as_json(self._calls[name](read(arguments, ARGUMENTS[name])))
        except ToolError as error:
            return as_json({"error": str(error)})
        except Exception:  # noqa: BLE001 - a trace may contain anything; the model can use the other tools
            return as_json({"error": _FAILED})

    def _read_root(self, request: ReadRootSpan) -> dict[str, object]:
        roots = self._steps.roots
        shown = self._read(roots[0], request)
        other_roots = [step.id for step in roots[1 : 1 + overview.MAX_NAMES]]
        return shown | {"other_roots": other_roots} if other_roots else shown

    def _read(self, step: Step, request: ReadRootSpan | ReadSpan) -> dict[str, object]:
        names = request.attributes_to_fetch
        content = step.content if names is UNSET else overview.encoded(step, names)
        offset = offset_of(request.page_token, len(content))
        return {"span_id": step.id, **page(content, offset, request.max_content_length)}


class _Timed(NamedTuple):
    """A step with known start and end; ``self_s`` is its time without the time of its children."""

    step: Step
    start: float
    end: float
    self_s: float

    @property
    def duration_s(self) -> float:
        return self.end - self.start


def report(steps: Steps) -> dict[str, object]:
    """Report the times of a trace; lists are sorted by weight and truncated."""
    timed = _timed(steps)
    children: defaultdict[str | None, list[_Timed]] = defaultdict(list)
    for each in timed:
        children[each.step.parent_id].append(each)
    overlaps = [each for siblings in children.values() for each in _overlaps(steps, siblings)]
    overlaps.sort(key=lambda overlap: -overlap[0])
    return {
        "spans": len(steps),
        "spans_without_usable_times": len(steps) - len(timed),
        "total_s": rounded(max(each.end for each in timed) - min(each.start for each in timed)) if timed else None,
        "slowest": _largest(steps, timed, lambda each: each.duration_s),
        "most_time_by_themselves": _largest(steps, timed, lambda each: each.self_s),
        "by_kind": _by_kind(timed),
        "overlaps": [row for _, row in overlaps[:_LISTED]],
    }


def _timed(steps: Iterable[Step]) -> list[_Timed]:
    timed = [
        (step, step.started_at, step.ended_at)
        for step in steps
        if step.started_at is not None and step.ended_at is not None and step.duration_s is not None
    ]
    below: defaultdict[str | None, list[tuple[float, float]]] = defaultdict(list)
    for step, start, end in timed:
        below[step.parent_id].append((start, end))
    return [_Timed(step, start, end, end - start - _covered(start, end, below[step.id])) for step, start, end in timed]


def _covered(start: float, end: float, parts: Iterable[tuple[float, float]]) -> float:
    """Return how much of an interval its parts cover together."""
    covered, reached = 0.0, start
    for part_start, part_end in sorted(parts):
        covered += max(0.0, min(part_end, end) - max(part_start, reached))
        reached = max(reached, min(part_end, end))
    return covered


def _overlaps(steps: Steps, siblings: Sequence[_Timed]) -> Iterator[tuple[float, dict[str, object]]]:
    """Yield the time gained by each group of children of one parent that ran at the same time, and its row."""
    groups: list[list[_Timed]] = []
    reached = float("-inf")
    for each in sorted(siblings, key=lambda each: (each.start, each.end)):
        if each.start < reached:
            groups[-1].append(each)
        else:
            groups.append([each])
        reached = max(reached, each.end)
    for group in (group for group in groups if len(group) > 1):
        # At one instant ends come before starts: steps that only touch do not overlap.
        changes = sorted(change for each in group for change in ((each.start, 1), (each.end, -1)))
        start, end, sum_s = group[0].start, max(each.end for each in group), sum(each.duration_s for each in group)
        yield (
            sum_s - (end - start),
            {
                "parent_id": group[0].step.parent_id,
                "spans": len(group),
                "span_ids": [each.step.id for each in group[:_LISTED]],
                "most_at_once": max(accumulate(change for _, change in changes)),
                "start_s": rounded(steps.since_start(start)),
                "end_s": rounded(steps.since_start(end)),
                "sum_s": rounded(sum_s),
            },
        )


def _largest(steps: Steps, timed: Iterable[_Timed], weight: Callable[[_Timed], float]) -> list[dict[str, object]]:
    return [
        {
            "id": each.step.id,
            "name": each.step.name,
            "kind": each.step.kind,
            "status": each.step.status,
            "start_s": rounded(steps.since_start(each.start)),
            "duration_s": rounded(each.duration_s),
            "self_s": rounded(each.self_s),
        }
        for each in sorted(timed, key=weight, reverse=True)[:_LISTED]
    ]


def _by_kind(timed: Iterable[_Timed]) -> list[dict[str, object]]:
    kinds: defaultdict[str, list[_Timed]] = defaultdict(list)
    for each in timed:
        kinds[each.step.kind or "unknown"].append(each)
    sums = [
        (sum(each.self_s for each in group), sum(each.duration_s for each in group), kind, group)
        for kind, group in kinds.items()
    ]
    return [
        {
            "kind": kind,
            "spans": len(group),
            "failed": sum(each.step.status == "error" for each in group),
            "self_s": rounded(self_s),
            "duration_s": rounded(duration_s),
        }
        for self_s, duration_s, kind, group in sorted(sums, key=lambda each: each[:3], reverse=True)[:20]
    ]
