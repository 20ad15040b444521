"""Does a conversation end without frustration of the user with the assistant?"""

import re
from typing import Final

from judges.core import sessions
from judges.forms import yes_no
from tracejudge import Trace

ROLE: Final = """\
You judge whether a user is frustrated with an assistant at the end of a conversation."""

CRITERION: Final = """\
What to decide
The material holds one conversation between a user and an assistant, each message after its role in square brackets. \
Decide whether it ends without frustration of the user with the assistant. Here yes means that the user is not \
frustrated, and no means that the user is.

How to weigh
- Frustration shows in what the user writes: complaints about the assistant or its answers, the same request made \
again because the answer did not help, sarcasm, insults, shouting in capitals or rows of exclamation marks, the wish \
for a human, or giving up.
- no: the user shows frustration, and nothing later shows that it has passed. The rationale then quotes the message \
that shows it.
- yes: the user shows no frustration; or shows some, and then accepts an answer, thanks, or goes on calmly.
- Anger at something else, such as a late parcel or a broken device, is not frustration with the assistant, unless the \
user blames the assistant or its answers for it.
- Short, blunt or impolite messages alone are not frustration; nor are corrections, further questions, or a user who \
just stops writing.
- Go by the user's messages. A poor answer that the user does not mind frustrates nobody, and an apology of the \
assistant does not show that the user was frustrated."""

_COMPLAINTS: Final = re.compile(
    r"useless|ridiculous|pointless|waste of time|not what i asked|already told you|how many times|are you even|"
    r"(?:speak|talk) to (?:a|an|some) (?:human|person|agent|real)|real person|forget it|!!|\?\?\?",
    re.IGNORECASE,
)
_CONTENT: Final = re.compile(r"\bthank|\bthanks\b|\bgreat\b|\bperfect\b|that works|that helps", re.IGNORECASE)


def heuristic(trace: Trace) -> tuple[bool, str]:
    """Answer by phrases from short lists in the user's messages."""
    complaint = 0
    for place, message in enumerate(sessions.turns(trace), 1):
        if message.role != "user":
            continue
        if _COMPLAINTS.search(message.content or ""):
            complaint = place
        elif _CONTENT.search(message.content or ""):
            complaint = 0
    if complaint:
        return False, f"Message {complaint} holds a phrase from a short list of complaints, and no thanks follow."
    return True, "No message of the user holds a phrase from a short list of complaints, or thanks follow it."


JUDGE: Final = yes_no.make_for_conversations(
    name="user_frustration",
    asks="Does the conversation end without frustration of the user with the assistant? (yes = not frustrated)",
    fixed=yes_no.fixed_part(ROLE, CRITERION),
    heuristic=heuristic,
)
