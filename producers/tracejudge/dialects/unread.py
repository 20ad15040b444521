"""Spans that no table reads: which instrumentations write them, and the names of their attributes, never a value."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from tracejudge.dialects.engine import Dialects, builtin
from tracejudge.dialects.names import RawSpan, Role

ADVICE: Final = "add a table, see `A dialect of your own` in docs/opentelemetry.md"
_MAX_NAMES: Final = 20
# Namespaces of the general semantic conventions, in which no content of a model is written.
_GENERAL: Final = re.compile(
    r"(?:artifact|asgi|aws|az|azure|browser|celery|client|cloud|code|container|db|deployment|destination|dns|enduser"
    r"|error|event|exception|faas|feature_flag|file|gcp|geo|graphql|grpc|host|http|k8s|log|messaging|net|network|next"
    r"|operation|os|otel|peer|process|rpc|server|service|session|signalr|source|system|telemetry|thread|tls|url|user"
    r"|traceloop\.association|user_agent|webengine)(?:\.|$)"
)
_CONTENT: Final = re.compile(
    r"answer|chat|completion|conversation|document|generat|input|message|output|prompt|query|question|response|retriev",
    re.IGNORECASE,
)
_LIKE_CALL: Final = re.compile(rf"{_CONTENT.pattern}|agent|llm|model|token|tool", re.IGNORECASE)
_SHOWN: Final = re.compile(r"[A-Za-z_][\w.:-]{0,79}", re.ASCII)
_FLATTENED: Final = re.compile(r"\.\d")


class Unread(Struct, frozen=True):
    """Spans of one instrumentation, and what of them no table reads."""

    scope: str  # Name of the instrumentation.
    names: tuple[str, ...]  # Attributes that no table reads and no general convention has.
    count: int  # Spans.
    table: str = ""  # The user's table that reads them as calls of a model, and misses all their content.
    setting: str = ""  # What has the content of calls captured, where they hold none.

    @property
    def is_like_call(self) -> bool:
        """Whether one of the names may be that of a question, an answer or a model."""
        return bool(self.table) or any(map(_LIKE_CALL.search, self.names))

    @property
    def words(self) -> str:
        """What is wrong, and how to correct it."""
        names = ", ".join(self.names) or "them"
        if self.setting:
            return f"they hold no content; set {self.setting}"
        if self.table:
            return f"table {self.table} reads these spans, but not {names}; name them in its input and output"
        return f"no dialect reads {names}{f'; {ADVICE}' if self.is_like_call else ''}"


def unread(spans: Iterable[RawSpan], dialects: Dialects) -> list[Unread]:
    """Describe the spans of a trace without a call of a model, or of one without an answer, by instrumentation."""
    scopes: dict[str, list[RawSpan]] = {}
    for span in spans:
        scopes.setdefault(shown_scope(span.scope or ""), []).append(span)
    kinds = []
    for scope, members in scopes.items():
        found = [_unread_of(span, dialects) for span in members]
        # The names that tell most about a dialect are first.
        names = sorted({name for own, _ in found for name in own}, key=lambda name: (not _LIKE_CALL.search(name), name))
        table = max(table for _, table in found)
        kinds.append(Unread(scope, tuple(names[:_MAX_NAMES]), len(members), table))
    return kinds


def without_answer(spans: Sequence[RawSpan], dialects: Dialects, *, has_content: bool) -> list[Unread]:
    """Describe why a call of a model has no answer: by names that no table reads, else by what captures content."""
    kinds = [kind for kind in unread(spans, dialects) if kind.is_like_call]
    for span in () if kinds or has_content else reversed(spans):
        if dialects.read(span).role is Role.LLM and (setting := dialects.capture(span)) is not None:
            return [Unread(shown_scope(span.scope or ""), (), 1, setting=setting)]
    return kinds


def _unread_of(span: RawSpan, dialects: Dialects) -> tuple[list[str], str]:
    """Return the names that no table of a span reads, and the user's table if it misses all its content."""
    role, keys = dialects.read(span).role, {key: _FLATTENED.split(key, maxsplit=1)[0] for key in span.attributes}
    is_call, present = role is Role.LLM, set(keys.values())
    tables = [table for table in dialects.tables if any(key.startswith(table.prefixes) for key in keys)]
    own = [table for table in tables if table not in builtin().tables]
    content = frozenset[str]().union(*(table.content_names for table in tables))
    if role is not None and (not is_call or span.events or not content.isdisjoint(present)):
        return [], ""
    kinds = frozenset[str]().union(*(table.kind_names for table in tables if table not in own))
    # What has a kind of one of our tables is of its dialect, with all names that begin as those.
    ours = builtin().prefixes if is_call or not kinds.isdisjoint(present) else ()
    known = (*ours, *(start for table in tables for start in table.content))
    read = frozenset[str]().union(*(table.names for table in tables))
    names = [key for key, name in keys.items() if name not in read and not key.startswith(known)]
    # Of a call that one of our tables reads, other names tell nothing unless they are like those of content.
    like = _CONTENT if is_call and not own else _SHOWN
    names = [key for key in names if not _GENERAL.match(key) and _SHOWN.fullmatch(key) and like.search(key)]
    return names, own[0].name if own and is_call and names and not any(table.events for table in own) else ""


def shown_scope(scope: str) -> str:
    """Return the name of an instrumentation for a log or a list."""
    return scope if not scope or re.fullmatch(r"[\w.:@/ -]{1,120}", scope) else "(another)"
