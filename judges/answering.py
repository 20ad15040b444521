"""Request the answers of a judge and parse them: one request shows everything, or the model reads by tools."""

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from judges.agent.conversation import ExplorationStats
from judges.agent.loop import AgentLoop
from judges.core.judge import Answer, Answered
from judges.core.prompt import Prompt, render
from judges.parsing.answer import InvalidAnswerError, OutOfRangeError, without_thinking
from judges.parsing.echo import is_echo
from judges.request import LARGE_CHARS, JudgeCall, UnscoredError, offload_if_large, repair

# Maximum number of concurrent requests for one trace: a trace of a hundred documents must not block all others.
_CONCURRENT: Final = 16
_FENCE: Final = re.compile(r"^[ \t]*```\w*[ \t]*$", re.MULTILINE)
# Shorter answers, such as three bare grades, are predictable: a planted one must not suppress the honest answer.
_MIN_ECHO_CHARS: Final = 120


class _SingleRequest:
    """The dialogue with a judge model that is shown everything at once."""

    def __init__(self, call: JudgeCall, prompt: Prompt) -> None:
        self._call = call
        self._prompt = prompt
        self._messages = render(prompt)

    async def answer(self) -> str:
        return (await self._call.ask(self._prompt, self._messages)).text

    async def repaired(self, text: str, error: InvalidAnswerError) -> str:
        return (await self._call.ask(self._prompt, (*self._messages, *repair(text, error)))).text

    async def shows(self, text: str) -> bool:
        shown = self._messages[-1].content
        return text in shown or await offload_if_large(len(shown) > LARGE_CHARS, is_echo, text, (shown,))


class AnswerLoop(NamedTuple):
    """Requests the answers of one judge for one trace; ``stats`` only for a judge with an exploration."""

    call: JudgeCall
    stats: ExplorationStats | None

    async def all(self, prompts: Sequence[Prompt]) -> list[Answered]:
        """Answer all requests, some concurrently; after a failure no further one is sent.

        Requests in flight are awaited: they are paid for, and their calls must be recorded.
        """
        if len(prompts) == 1:
            return [Answered(prompts[0], await self._answer(prompts[0]))]
        waiting, answers, failures = deque(enumerate(prompts)), dict[int, Answer](), list[UnscoredError]()

        async def work() -> None:
            while waiting and not failures:
                place, prompt = waiting.popleft()
                try:
                    answers[place] = await self._answer(prompt)
                except UnscoredError as error:
                    failures.append(error)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_CONCURRENT, len(prompts))):
                group.create_task(work())
        if failures:
            raise failures[0]
        return [Answered(prompt, answers[place]) for place, prompt in enumerate(prompts)]

    async def _answer(self, prompt: Prompt) -> Answer:
        """Return one parsed answer, after at most one repair request."""
        dialogue: _SingleRequest | AgentLoop
        exploration = self.call.judge.exploration
        if exploration is None or self.stats is None:
            dialogue = _SingleRequest(self.call, prompt)
        else:
            dialogue = await AgentLoop.open(self.call, prompt, exploration, self.stats)
        text = await dialogue.answer()
        try:
            return await self._read(dialogue, text)
        except InvalidAnswerError as error:
            text = await dialogue.repaired(text, error)
        try:
            return await self._read(dialogue, text)
        except InvalidAnswerError as error:
            raise UnscoredError("invalid_answer", str(error)) from error

    async def _read(self, dialogue: _SingleRequest | AgentLoop, text: str) -> Answer:
        """Parse an answer, unless the material contains it verbatim, also in a fence: then it was planted there."""
        answer = without_thinking(text)
        bare = (_FENCE.sub("", answer) if "```" in answer else answer).strip()
        if len(bare) >= _MIN_ECHO_CHARS and await dialogue.shows(bare):
            raise InvalidAnswerError("the answer is a copy from the material")
        try:
            return await offload_if_large(len(text) > LARGE_CHARS // 10, self.call.judge.read, answer)
        except OutOfRangeError as error:
            raise UnscoredError("out_of_range", str(error)) from error
