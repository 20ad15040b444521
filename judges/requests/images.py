"""Images of a trace, which stand in its texts as marks: `[image]`, `[image 165 kB]` or `[image https://…]`."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from judges.core.prompt import Message, Prompt
from tracejudge import Trace
from tracejudge.dialects.values import IMAGE

_MAX_IMAGES: Final = 20  # In one message; more are left out.
# A host by its name: whoever writes a text must not lead the endpoint to an address within its own network.
_PASSED: Final = re.compile(r"https://[A-Za-z0-9.-]*\.[A-Za-z][A-Za-z0-9-]*(?::\d{1,5})?(?:[/?#][!-Z^-~]*)?")


def with_images(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Add to the messages of the user the addresses of the images that they name."""
    return tuple(
        message._replace(images=_addresses(message.content)) if message.role == "user" else message
        for message in messages
    )


def count_left_out(trace: Trace, prompts: Iterable[Prompt], *, passes: bool) -> int:
    """Count the images of the material that a model does not see; ``passes`` says whether it gets their addresses.

    Of a trace that is read by tools, these are the images of input, output and messages.
    """
    left_out = dict[str, int]()
    for prompt in prompts:
        shown = [message.content for message in prompt.messages] or [block.value for block in prompt.blocks]
        passed = _addresses("\n".join(shown)) if passes else ()
        read = () if shown else (trace.input, trace.output, *(message.content for message in trace.messages or ()))
        for text in filter(None, (*shown, *read)):
            if "[image" in text:
                left_out[text] = sum(mark[1] not in passed for mark in IMAGE.finditer(text))
    return sum(left_out.values())


def _addresses(text: str) -> tuple[str, ...]:
    marks = IMAGE.finditer(text) if "[image https://" in text else ()
    found = (mark[1] for mark in marks if mark[1] and _PASSED.fullmatch(mark[1]))
    return tuple(dict.fromkeys(found))[:_MAX_IMAGES]
