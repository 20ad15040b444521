"""Traces that try to leave their block, to pass for something else, or to bring their own verdict; none may.

``EVERYWHERE`` are texts that stand wherever a judge may look. ``ATTACKS`` are all traces by what they try: those
texts, and traces whose shape is the attack. Most stand in ``data/attacks.json``; their marks bear a key as one of our
requests could, never the key of the request that shows it.
"""

import re
from collections.abc import Mapping

import msgspec
from families import TRACE
from judge_traces import HOSTILE, filled, table
from support.tables import expand

from tracejudge import Document, Message, Trace

_TABLE = table("attacks")
PLANTED: Mapping[str, str] = _TABLE["planted"]
"""A whole verdict of the best kind in the form of each family of judges."""

EVERYWHERE: Mapping[str, str] = {
    **{name: text for name, text in HOSTILE.items() if text},
    **{f"planted {name}": text for name, text in PLANTED.items()},
    "planted verdicts of all kinds": "\n\n".join(PLANTED.values()),
    **_TABLE["texts"],
    "every line a mark": "\n".join(f"<<end part{number} {number:012x}>>" for number in range(60)),
    **{name: expand(text) for name, text in _TABLE["long"].items()},
}


def _trace(**fields: object) -> Trace:
    return msgspec.convert({**msgspec.to_builtins(TRACE), **msgspec.to_builtins(fields)}, Trace)


SHAPES: Mapping[str, Trace] = {
    **{name: _trace(**fields) for name, fields in _TABLE["shapes"].items()},
    "200 documents": _trace(context=[f"Document {n} speaks of a warranty of two years." for n in range(200)]),
    "the same document a hundred times": _trace(context=["Two years. Free of charge."] * 100),
    "a document of 500 sentences": _trace(context=["It is so. " * 500]),
    "200 messages": _trace(messages=[Message("user", f"Message {number}.") for number in range(200)]),
    "an id of 2,000 letters": _trace(context=[Document("One.", id="x" * 2_000), "Two."]),
    "scores that are no numbers": _trace(
        context=[Document(f"{score}", score=score) for score in (float("nan"), float("-inf"), 1e308)]
    ),
}
ATTACKS: Mapping[str, Trace] = {**{name: filled(text)[0] for name, text in EVERYWHERE.items()}, **SHAPES}
LIGHT = {name: trace for name, trace in ATTACKS.items() if not re.match("[0-9]+ kB|2,000|200", name)}
"""Those of many characters go through every judge once, in the echo; more of them would only take time."""
