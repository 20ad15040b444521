"""Does the assistant remember and use what the user has said earlier in a conversation?"""

import re
from typing import Final

from judges.core import sessions
from judges.forms import yes_no
from tracejudge import Trace

ROLE: Final = """\
You judge whether an assistant remembers what a user has told it during a conversation."""

CRITERION: Final = """\
What to decide
The material holds one conversation between a user and an assistant, each message after its role in square brackets. \
Decide whether every message of the assistant keeps to what the user had said before it.

How to weigh
- List the facts that the user states: names, numbers, dates, places, wishes, conditions, and what was tried already. \
Where the user corrects a fact, the correction replaces it from there on.
- For each message of the assistant, look at the facts stated before it.
- no: at least one message of the assistant asks for a fact that the user had given, contradicts it, mixes it up with \
another, or proposes what the user had ruled out or already tried. The rationale then names the fact and that message.
- yes: none does, also when the user states no facts.
- To repeat a fact in order to confirm it is not forgetting. Nor is it to leave out a fact that has no bearing on \
what is asked, or to ask for a detail that the user gave only in part.
- Only what the user said in this conversation counts. Whether the assistant's other statements are true or complete \
plays no part."""

_ASKED: Final = re.compile(
    r"\b(?:what(?:'s|\u2019s| is) your|(?:tell|give|send) me your|share your)\s+(\w+(?:\s\w+)?)", re.IGNORECASE
)


def heuristic(trace: Trace) -> tuple[bool, str]:
    """Look for questions of the assistant about something that the user has named as "my ..."."""
    earlier = ""
    for place, message in enumerate(sessions.turns(trace), 1):
        text = " ".join((message.content or "").casefold().split())
        if message.role == "user":
            earlier += f" {text}"
        elif message.role == "assistant":
            for asked in _ASKED.findall(text):
                if f"my {asked.casefold()} is " in earlier:
                    return False, f"Message {place} asks for something that the user has named before."
    return True, "The assistant asks for nothing that the user has named before as theirs."


JUDGE: Final = yes_no.make_for_conversations(
    name="knowledge_retention",
    asks="Does the assistant keep to what the user has said earlier in the conversation?",
    fixed=yes_no.fixed_part(ROLE, CRITERION),
    heuristic=heuristic,
)
