"""The tools over one trace, called by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from judges.models.model import Tool
from judges.trace_tools import arguments, overview, searching, timing
from judges.trace_tools.budget import CLOCKS, Budget, Clocks
from judges.trace_tools.content import Contents, as_json, page
from judges.trace_tools.definitions import TOOLS, ListSpans, NoArguments, ReadRootSpan, ReadSpan, SearchTrace
from judges.trace_tools.errors import ToolError
from judges.trace_tools.pieces import Pieces
from judges.trace_tools.searching import Wanted
from judges.trace_tools.spans import Step, Steps
from judges.trace_tools.texts import short
from tracejudge import Trace

__all__ = ["TraceToolbox"]

_FAILED: Final = "This tool cannot read this trace. Use another one, or answer with what you know."


class TraceToolbox:
    """The six tools over one trace; used by one thread at a time.

    What was once written for a span is kept, and so is what searches read of it: about twice the trace, see `Pieces`.
    """

    def __init__(self, trace: Trace, clocks: Clocks = CLOCKS) -> None:
        self._trace = trace
        self._steps = Steps(trace)
        self._contents = Contents()
        self._pieces = Pieces(self._contents)
        self._clocks = clocks
        self._calls: Mapping[str, Callable[[str], dict[str, object]]] = {
            "get_trace_info": _taking(NoArguments, lambda _: overview.info(trace, self._steps)),
            "get_root_span": _taking(ReadRootSpan, self._read_root),
            "get_span": _taking(ReadSpan, lambda given: self._read(self._steps.find(given.span_id), given)),
            "list_spans": _taking(ListSpans, self._list),
            "search_trace_regex": _taking(SearchTrace, self._search),
            "get_span_performance_and_timing_report": _taking(NoArguments, lambda _: timing.report(self._steps)),
        }

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools as a model is told of them."""
        return TOOLS

    def call(self, name: str, arguments: str) -> str:
        """Call a tool, within about a second.

        Args:
            name: As the model wrote it.
            arguments: JSON as the model wrote it.

        Returns:
            A JSON object: what the tool gives, or under ``error`` what is wrong with the call and what to send instead.
            Nothing is raised.
        """
        try:
            return as_json(self._answer(name, arguments))
        except ToolError as error:
            return as_json({"error": str(error)})
        except Exception:  # noqa: BLE001 - a trace may hold anything; the model can go on with what else it has
            return as_json({"error": _FAILED})

    def _answer(self, name: str, arguments: str) -> dict[str, object]:
        if name not in self._calls:
            raise ToolError(f"There is no tool `{short(name, 80)}`. Tools are: {', '.join(self._calls)}.")
        return self._calls[name](arguments)

    def _read_root(self, given: ReadRootSpan) -> dict[str, object]:
        roots = self._steps.roots
        read = self._read(roots[0], given)
        return read if len(roots) == 1 else read | {"other_roots": overview.others(roots)}

    def _read(self, step: Step, given: ReadRootSpan | ReadSpan) -> dict[str, object]:
        content = self._content(step, given.attributes_to_fetch)
        found = page(content, arguments.offset_of(given.page_token, len(content)), given.max_content_length)
        return {
            "span_id": step.id,
            "content": found.text,
            "content_size_bytes": found.size_bytes,
            "page_token": found.page_token,
        }

    def _content(self, step: Step, names: Sequence[str] | UnsetType) -> bytes:
        return self._contents.whole(step) if names is UNSET else self._contents.with_attributes(step, names)

    def _list(self, given: ListSpans) -> dict[str, object]:
        offset = arguments.offset_of(given.page_token, len(self._steps))
        return overview.listed(self._steps, offset, given.max_results)

    def _search(self, given: SearchTrace) -> dict[str, object]:
        steps = (*self._steps, *((self._steps.record,) if self._steps.are_recorded else ()))
        start = arguments.position_of(given.page_token, len(steps))
        wanted = Wanted(given.pattern, start, given.max_matches, given.surrounding_content_length)
        return searching.search(steps, self._pieces, wanted, Budget(self._clocks))


def _taking(form: type[Struct], tool: Callable[..., dict[str, object]]) -> Callable[[str], dict[str, object]]:
    return lambda given: tool(arguments.read(given, form))
