"""What every dialect says alike: ids, tokens, errors."""

from collections.abc import Mapping

from tracejudge.dialects import names
from tracejudge.dialects.reading import Reading
from tracejudge.dialects.spans import RawSpan
from tracejudge.dialects.values import first_count, first_text, text_of
from tracejudge.model import Usage


def common(span: RawSpan) -> Reading:
    """Read what is no dialect's own."""
    return Reading(
        session_id=text_of(span.attributes.get(names.SESSION_ID)),
        user_id=first_text(span.attributes, names.USER_IDS),
        error=_error(span),
    )


def usage_of(attributes: Mapping[str, object], asked: tuple[str, ...], said: tuple[str, ...]) -> Usage | None:
    """Read the tokens under these names; None when neither number is there."""
    tokens = first_count(attributes, asked), first_count(attributes, said)
    return None if tokens == (None, None) else Usage(tokens[0] or 0, tokens[1] or 0)


def _error(span: RawSpan) -> str | None:
    """Say what went wrong: the class of the error and its words, from the event where the status has none."""
    if span.status != "error":
        return None
    exception = next(iter(reversed(list(span.events_named(names.EVENT_EXCEPTION)))), {})
    kind = text_of(span.attributes.get(names.ERROR_TYPE)) or text_of(exception.get(names.EXCEPTION_TYPE))
    words = text_of(exception.get(names.EXCEPTION_MESSAGE)) or text_of(span.description)
    if kind is None or words is None:
        return kind or words or "error"
    return words if words.startswith(kind) else f"{kind}: {words}"
