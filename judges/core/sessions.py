"""Conversations: the traces of one session, joined into one trace for judges whose unit is the conversation."""

import hashlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from judges.core.judge import Needs, has_text
from judges.core.prompt import before_query, conversation
from judges.core.verdict import joined_parts, session_parts
from tracejudge import Message, Trace

# Fields that are about a single answer, and that would make up most of a conversation's size.
_OF_ONE_ANSWER: Final = dict.fromkeys(
    (
        *("context", "expected_response", "expected_facts", "guidelines", "tool_calls", "tools", "expected_tools"),
        *("spans", "usage", "feedback"),
    )
)
_ROLES: Final = {"human": "user", "ai": "assistant"}  # LangChain's names of roles.


def lacking(needs: Needs) -> str | None:
    """Return a needed field that no conversation has, or None."""
    alternatives = ((need,) if isinstance(need, str) else need for need in needs)
    return next((names[0] for names in alternatives if all(name in _OF_ONE_ANSWER for name in names)), None)


def session_id_of(trace: Trace, replay: str = "") -> str:
    """Return the id of a trace's conversation in Redis, 32 hex digits; each replay gathers its own conversations."""
    parts = session_parts(trace) + (joined_parts("replay", replay) if replay else b"")
    return hashlib.blake2b(parts, digest_size=16).hexdigest()


def part(trace: Trace) -> Trace:
    """Keep only the fields of a trace that a conversation is built from."""
    return replace(trace, **_OF_ONE_ANSWER)


def in_order(traces: Sequence[Trace]) -> list[Trace]:
    """Sort traces by the start of their calls; if one has no time, they stay as they are."""
    times = [trace.ended_at if trace.started_at is None else trace.started_at for trace in traces]
    stated = [time for time in times if time is not None]
    if len(stated) < len(traces):
        return list(traces)
    return [traces[place] for place in sorted(range(len(traces)), key=stated.__getitem__)]


def join(traces: Sequence[Trace]) -> Trace:
    """Join the traces of a conversation, the oldest first."""
    # The result is the last trace with all earlier messages, queries and answers as its messages. Applications send the
    # history with each call: a message that a trace repeats from earlier ones is not added again.
    messages: list[Message] = []
    places: defaultdict[tuple[str, str], list[int]] = defaultdict(list)

    def add(message: Message) -> None:
        places[_key(message)].append(len(messages))
        messages.append(message)

    for trace in traces:
        last, length = -1, len(messages)
        for message in before_query(trace):
            # The repeated history is in the same order, and may have lost its beginning.
            same = places.get(_key(message), ())
            following = bisect_right(same, last)
            if following < len(same) and same[following] < length:
                last = same[following]
            else:
                add(message)
        if trace is not traces[-1]:
            for message in _own(trace):
                add(message)
    return replace(part(traces[-1]), messages=messages or None, started_at=traces[0].started_at)


def turns(trace: Trace) -> list[Message]:
    """List the messages of a joined conversation with its last query and answer."""
    return [*(trace.messages or ()), *_own(trace)]


def transcript(trace: Trace, *, with_tools: bool = False) -> str:
    """Format a joined conversation, see ``judges.core.prompt.conversation``."""
    return conversation(replace(trace, messages=turns(trace)), with_tools=with_tools)


def _own(trace: Trace) -> list[Message]:
    texts = (("user", trace.input), ("assistant", trace.output))
    return [Message(role, text) for role, text in texts if has_text(text)]


def _key(message: Message) -> tuple[str, str]:
    role = message.role.casefold()
    return _ROLES.get(role, role), (message.content or "").strip()
