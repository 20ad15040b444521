"""From the requests of a judge to answers that can be read: one request shows all, or the model reads by tools."""

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from judges.answer import InvalidAnswerError, OutOfRangeError, without_thinking
from judges.apart import LARGE_CHARS, apart
from judges.asking import Asking, UnscoredError, repair
from judges.copies import stands_in
from judges.exploring.course import Course
from judges.exploring.explorer import Explorer
from judges.judge import Answer, Answered
from judges.prompt import Prompt, render

__all__ = ["Answering"]

_AT_ONCE: Final = 16
"""Requests about one trace under way together: a trace of a hundred documents must not take all places."""
_FENCE: Final = re.compile(r"^[ \t]*```\w*[ \t]*$", re.MULTILINE)
_MIN_COPIED_CHARS: Final = 120
"""Shorter answers, as three bare grades, can be foretold: a planted one must not keep the same honest one away."""


class Dialogue(Protocol):
    """One request and what follows on it, until there is an answer."""

    async def answer(self) -> str:
        """Get the text of the answer."""
        ...

    async def repaired(self, text: str, error: InvalidAnswerError) -> str:
        """Get the text of another one, after one that cannot be read."""
        ...

    async def shows(self, text: str) -> bool:
        """Tell whether a text stands in the material that the model saw."""
        ...


class _OneRequest:
    """The dialogue of a judge whose requests show all there is."""

    def __init__(self, asking: Asking, prompt: Prompt) -> None:
        self._asking = asking
        self._prompt = prompt
        self._messages = render(prompt)

    async def answer(self) -> str:
        return (await self._asking.ask(self._prompt, self._messages)).text

    async def repaired(self, text: str, error: InvalidAnswerError) -> str:
        return (await self._asking.ask(self._prompt, (*self._messages, *repair(text, error)))).text

    async def shows(self, text: str) -> bool:
        shown = self._messages[-1].content
        return text in shown or await apart(len(shown) > LARGE_CHARS, stands_in, text, (shown,))


class Answering(NamedTuple):
    """The answers of one judge about one trace."""

    asking: Asking
    course: Course | None

    async def all(self, prompts: Sequence[Prompt]) -> list[Answered]:
        """Answer all requests, some at the same time; after a failure no further one is begun.

        Those under way are waited for: they are paid for, and belong into the books of calls.
        """
        if len(prompts) == 1:
            return [Answered(prompts[0], await self._answer(prompts[0]))]
        waiting, answers, failures = deque(enumerate(prompts)), dict[int, Answer](), list[UnscoredError]()

        async def work() -> None:
            while waiting and not failures:
                place, prompt = waiting.popleft()
                try:
                    answers[place] = await self._answer(prompt)
                except UnscoredError as end:
                    failures.append(end)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_AT_ONCE, len(prompts))):
                group.create_task(work())
        if failures:
            raise failures[0]
        return [Answered(prompt, answers[place]) for place, prompt in enumerate(prompts)]

    async def _answer(self, prompt: Prompt) -> Answer:
        """Get one answer that can be read, after at most one repair request."""
        dialogue: Dialogue
        exploration, course = self.asking.judge.exploration, self.course
        if exploration is None or course is None:
            dialogue = _OneRequest(self.asking, prompt)
        else:
            dialogue = await Explorer.open(self.asking, prompt, exploration, course)
        text = await dialogue.answer()
        try:
            return await self._read(dialogue, text)
        except InvalidAnswerError as error:
            text = await dialogue.repaired(text, error)
        try:
            return await self._read(dialogue, text)
        except InvalidAnswerError as error:
            raise UnscoredError("invalid_answer", str(error)) from error

    async def _read(self, dialogue: Dialogue, text: str) -> Answer:
        """Read an answer, unless it stands in the material word for word, also in a fence: somebody planted that."""
        answer = without_thinking(text)
        copied = (_FENCE.sub("", answer) if "```" in answer else answer).strip()
        if len(copied) >= _MIN_COPIED_CHARS and await dialogue.shows(copied):
            raise InvalidAnswerError("the answer is a copy from the material")
        try:
            return await apart(len(text) > LARGE_CHARS // 10, self.asking.judge.read, answer)
        except OutOfRangeError as error:
            raise UnscoredError("out_of_range", str(error)) from error
