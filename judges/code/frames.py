"""What a worker and a process with a judge say to each other: JSON, each message behind its length.

worker                      process
  Start           ->
                  <-   Started          when it has imported the judge
  a trace         ->
                  <-   Answer           and so on, one trace at a time
  (end of file)   ->                    it ends, with all processes it began
"""

import struct
from io import BufferedReader
from typing import Final

from msgspec import Struct

from judges.verdict import Score

__all__ = ["HEAD", "MAX_ANSWER_BYTES", "Answer", "Start", "Started", "framed", "read_frame"]

HEAD: Final = struct.Struct("!I")
"""The length of what follows, in bytes."""
MAX_ANSWER_BYTES: Final = 256 * 1024
"""A verdict is kept whole, exported and shown; what is longer is a fault of the judge."""


class Start(Struct, frozen=True):
    """What a process needs to begin.

    Attributes:
        name: The judge's name, which its only metric bears.
        path: Where modules are sought: as the worker seeks them, and in the folder of a judge's file.
        time_limit_s: How long one trace may take.
        text: What the judge's file held when the worker began; nothing where it is named by its module.
        memory_bytes: How much address space the process may take; as much as it likes unless given.
    """

    name: str
    path: list[str]
    time_limit_s: float
    text: bytes | None = None
    memory_bytes: int | None = None


class Started(Struct, frozen=True):
    """The judge is there, and bears this fingerprint; or why it is not there."""

    fingerprint: str | None = None
    failed: str | None = None


class Answer(Struct, frozen=True, omit_defaults=True):
    """The scores of one trace, or why there are none.

    Attributes:
        is_spent: Whether its process has no memory left and is to judge no further trace.
    """

    scores: tuple[Score, ...] = ()
    rationale: str | None = None
    failed: str | None = None
    is_spent: bool = False


def framed(payload: bytes) -> bytes:
    """Put the length before a message."""
    return HEAD.pack(len(payload)) + payload


def read_frame(source: BufferedReader) -> bytes | None:
    """Read one message; None at the end."""
    head = source.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    (size,) = HEAD.unpack(head)
    payload = source.read(size)
    return payload if len(payload) == size else None
