"""Spans that no table reads: which instrumentations write them, and the names of their attributes, never a value."""

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from tracejudge.dialects.engine import Dialects
from tracejudge.dialects.names import RawSpan, Role

ADVICE: Final = "add a table, see `A dialect of your own` in docs/opentelemetry.md"
_MAX_NAMES: Final = 20
# Namespaces of the general semantic conventions, in which no content of a model is written.
_GENERAL: Final = re.compile(
    r"(?:artifact|asgi|aws|az|azure|browser|celery|client|cloud|code|container|db|deployment|destination|dns|enduser"
    r"|error|event|exception|faas|feature_flag|file|gcp|geo|graphql|grpc|host|http|k8s|log|messaging|net|network|next"
    r"|operation|os|otel|peer|process|rpc|server|service|session|signalr|source|system|telemetry|thread|tls|url|user"
    r"|user_agent|webengine)(?:\.|$)"
)
_LIKE_CALL: Final = re.compile(
    r"agent|answer|chat|completion|conversation|document|generat|input|llm|message|model|output|prompt|query|question"
    r"|response|retriev|token|tool",
    re.IGNORECASE,
)
_SHOWN: Final = re.compile(r"[A-Za-z_][\w.-]{0,79}", re.ASCII)


class Unread(Struct, frozen=True):
    """Spans of one instrumentation in a trace without a call of a model."""

    scope: str  # Name of the instrumentation.
    names: tuple[str, ...]  # Attributes that no table reads and no general convention has.
    count: int  # Spans.

    @property
    def is_like_call(self) -> bool:
        """Whether one of the names may be that of a question, an answer or a model."""
        return any(map(_LIKE_CALL.search, self.names))


def unread(spans: Iterable[RawSpan], dialects: Dialects) -> list[Unread]:
    """Describe the spans of a trace without a call of a model, by instrumentation."""
    scopes: dict[str, list[RawSpan]] = {}
    for span in spans:
        scopes.setdefault(span.scope or "", []).append(span)
    kinds = []
    for scope, members in scopes.items():
        names = unread_names((key for span in members for key in span.attributes), dialects)
        kinds.append(Unread(shown_scope(scope), names, len(members)))
    return kinds


def unread_names(keys: Iterable[str], dialects: Dialects) -> tuple[str, ...]:
    """Return the names that no table reads, without those of general conventions and those that could be texts."""
    names = {key for key in keys if not dialects.is_read(key) and not _GENERAL.match(key) and _SHOWN.fullmatch(key)}
    # The names that tell most about a dialect are first.
    return tuple(sorted(names, key=lambda name: (not _LIKE_CALL.search(name), name))[:_MAX_NAMES])


def shown_scope(scope: str) -> str:
    """Return the name of an instrumentation for a log or a list."""
    return scope if not scope or re.fullmatch(r"[\w.@/ -]{1,120}", scope) else "(another)"


def missing_content(spans: Iterable[RawSpan], dialects: Dialects) -> tuple[str, str] | None:
    """Return the instrumentation of the last call of a model, and the setting that captures the content of calls."""
    for span in reversed(list(spans)):
        if dialects.read(span).role is Role.LLM and (setting := dialects.capture(span)) is not None:
            return shown_scope(span.scope or ""), setting
    return None
