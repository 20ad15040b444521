"""Does the assistant deal with everything that the user asks for in a conversation?"""

from typing import Final

from judges.core import sessions
from judges.forms import yes_no
from judges.parsing.sentences import content_words, coverage
from tracejudge import Trace

ROLE: Final = """\
You judge whether an assistant dealt with everything a user asked for in a conversation."""

CRITERION: Final = """\
What to decide
The material holds one conversation between a user and an assistant, each message after its role in square brackets. \
Decide whether, at the end of it, every request of the user has been dealt with.

How to weigh
- Go through the user's messages and list what they ask for: questions, tasks, and the parts of each.
- A request is dealt with when the assistant answers it, does it, or says plainly that it cannot or may not and why. \
It may do so in a later message.
- A request that the user takes back or replaces is no longer open. The newer one counts.
- A question back is right where something is missing. When the user supplies it, the request is open again.
- no: at least one request is open at the end: passed over, answered in part, promised and not done, or answered with \
something else. The rationale then names each open request.
- yes: none is open, also when the user asks for nothing.
- When the conversation ends with a question back that the user never answers, that request is not open.
- Only the coverage of requests counts. Whether an answer is true, polite or short plays no part."""

_MIN_COVERAGE: Final = 0.2


def heuristic(trace: Trace) -> tuple[bool, str]:
    """Answer by word overlap between each question of the user and what the assistant says after it."""
    turns = sessions.turns(trace)
    for place, message in enumerate(turns):
        if message.role != "user" or "?" not in (message.content or ""):
            continue
        replies = " ".join(later.content or "" for later in turns[place + 1 :] if later.role == "assistant")
        share = coverage(content_words(message.content or ""), content_words(replies))
        if share < _MIN_COVERAGE:
            return False, f"Message {place + 1} asks something, and {share:.0%} of its words stand in later answers."
    return True, "The words of every question stand in later answers."


JUDGE: Final = yes_no.make_for_conversations(
    name="conversation_completeness",
    asks="Is every request of the user dealt with by the end of the conversation?",
    fixed=yes_no.fixed_part(ROLE, CRITERION),
    heuristic=heuristic,
)
