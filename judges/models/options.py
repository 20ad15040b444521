"""Ask with everything that helps, and leave out from then on what the endpoint says that it does not take."""

import re
from collections.abc import Callable, Mapping
from typing import Final

import httpx
import msgspec

from judges.models.faults import Fault, read_fault, translated
from judges.models.http import HttpEndpoint, Reply

__all__ = ["Options"]

_COMPLAINT: Final = re.compile(
    r"support|unknown|unrecogni[sz]ed|unexpected|not allowed|not permitted|invalid|extra|needs|requires|must"
    r"|deprecated|may only"
)
_WANTED: Final = re.compile(r"missing|passed back")
"""DeepSeek names what it misses by the same words as others what they do not take."""
_MAX_COMPLAINT_CHARS: Final = 500


class Options:
    """The optional parts of the requests to one endpoint: found out once which of them it refuses, and remembered."""

    def __init__(self, hints: Mapping[str, tuple[str, ...]]) -> None:
        """Take the names of the options, and for each the words in lower case by which complaints name it."""
        self._hints = hints
        self._refused: frozenset[str] = frozenset()

    async def post(
        self,
        endpoint: HttpEndpoint,
        body: Mapping[str, object],
        options: Mapping[str, Mapping[str, object]],
        *,
        with_tools: bool = False,
    ) -> Reply:
        """Send one request until no option of it is refused.

        Args:
            body: What every endpoint takes.
            options: The parts of the body that come with an option, or replace the plain ones, by its name.
            with_tools: Whether body or messages speak of tools, so that a complaint may be about them.

        Raises:
            ModelError: With the reason why there is no answer.
        """
        while True:
            without = self._refused
            reply = await endpoint.post(_encoded(body, options, without))
            if reply.status == httpx.codes.OK:
                return reply
            fault = read_fault(reply.body)
            # Only of what was sent: a complaint about a tool may use the same words.
            refused = self._complained_of(reply.status, fault) & (options.keys() - without)
            if not refused:
                raise translated(reply, fault, with_tools=with_tools)
            self._refused |= refused

    def _complained_of(self, status: int, fault: Fault) -> frozenset[str]:
        if status not in (httpx.codes.BAD_REQUEST, httpx.codes.UNPROCESSABLE_ENTITY):
            return frozenset()
        param, message = (fault.param or "").lower(), fault.message.lower()
        if _WANTED.search(message[:_MAX_COMPLAINT_CHARS]):
            return frozenset()
        if param in {"", "none", "null"} and len(message) <= _MAX_COMPLAINT_CHARS:
            # Some servers name the option only in words. Longer texts may quote the prompt, which proves nothing.
            complains = _COMPLAINT.search(message) is not None
            return self._named_in(message, lambda hint: complains or "_" in hint)
        return self._named_in(param, lambda _hint: True)

    def _named_in(self, text: str, counts: Callable[[str], bool]) -> frozenset[str]:
        """Find options by their hints. One that is a name of the API says enough, a plain word only in a complaint."""
        return frozenset(
            option for option, hints in self._hints.items() if any(hint in text and counts(hint) for hint in hints)
        )


def _encoded(body: Mapping[str, object], options: Mapping[str, Mapping[str, object]], without: frozenset[str]) -> bytes:
    whole = dict(body)
    for name, parts in options.items():
        if name not in without:
            whole |= parts
    return msgspec.json.encode(whole)
