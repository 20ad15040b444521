"""What a judge is: one frozen definition of what it needs, asks, reads and scores.

A judge file makes one ``Judge`` named ``JUDGE``; the catalogue finds it by itself.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from judges.exploration import Exploration
from judges.exploring.texts import TEXTS
from judges.prompt import LAYOUT, VISIBLE, Prompt
from judges.verdict import Score
from tracejudge import Document, Trace

__all__ = [
    "Answer",
    "Answered",
    "AnyOf",
    "Judge",
    "JudgeFailedError",
    "Metric",
    "Needs",
    "NoSettings",
    "Reading",
    "has_text",
]

Answer = Any
"""One answer of the judge model as the judge's ``read`` returns it; only its own ``score`` looks into it."""

Needs = Sequence[str | tuple[str, ...]]
"""Names of trace fields; a tuple means exactly one of them, or at least one where it is an ``AnyOf``."""


class AnyOf(tuple[str, ...]):
    """Names of trace fields of which at least one is needed."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure that a judge gives.

    Attributes:
        scale: The scale of the raw rating in words, as ``0 or 1`` or ``1..5``.
        pass_rule: When a score passes, in words; absent where nothing passes or fails.
        descriptive: Neither high nor low values are good: such a metric raises no alert.
        pass_at: The value, 0..1, from which a score passes; absent where nothing but the rating itself tells.
    """

    name: str
    scale: str
    pass_rule: str | None
    descriptive: bool = False
    pass_at: float | None = None

    @property
    def passes(self) -> str:
        """Say when a score passes, for display."""
        return self.pass_rule or ("descriptive" if self.descriptive else "no pass rule")


class NoSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a judge that has none."""


_NO_SETTINGS: Final = NoSettings()


class Answered(NamedTuple):
    """One request of a judge, and what its ``read`` made of the model's answer."""

    prompt: Prompt
    answer: Answer


class Reading(NamedTuple):
    """What a judge makes of its answers. No scores and no error means that it abstained."""

    scores: tuple[Score, ...]
    rationale: str | None = None
    details: Mapping[str, object] = {}


class JudgeFailedError(Exception):
    """A judge in code has no verdict; the message is ours and holds no text of the trace."""


@dataclass(frozen=True)
class Judge:
    """The definition of one judge.

    Attributes:
        name: Its name in rules, metrics and spans.
        asks: One sentence for the catalogue.
        metrics: What it gives, in order.
        needs: Inputs without which nothing is asked; a tuple stands for exactly one of several.
        fixed_parts: Every fixed part it may send; they go into the version.
        schema: JSON schema of one answer.
        prompts: The requests for a trace, usually one; several are asked at the same time.
        read: Reads one answer; raises ``AnswerError`` and nothing else.
        score: Turns the answers to all requests on a trace, in their order, into scores; raises nothing.
        heuristic: The answer of the built-in lexical model to one request: JSON in this judge's form, or a text.
        scoring: Revision of ``read`` and ``score``; raise it whenever either may judge differently.
        settings: What can be configured under `[judges.NAME]`; part of the version.
        make: Makes the same judge with other settings, of the type of ``settings``.
        prepare: Completes a trace before anything else looks at it, as with rules of the configuration.
        cuts: Trace fields of which parts may be left out when a trace is too long for the model, in this order.
        exploration: How the model reads the trace by tools before it answers; nothing where the requests show all.
            Such a judge makes one request.
        run: A judge in code: it scores a trace without a judge model, and raises ``JudgeFailedError`` where it cannot.
        close: Ends what ``run`` began; called in the same event loop when no more traces come.
    """

    name: str
    asks: str
    metrics: tuple[Metric, ...]
    needs: Needs
    fixed_parts: tuple[str, ...]
    schema: Mapping[str, object]
    prompts: Callable[[Trace], tuple[Prompt, ...]]
    read: Callable[[str], Answer]
    score: Callable[[Trace, Sequence[Answered]], Reading]
    heuristic: Callable[[Trace, Prompt], object]
    scoring: str
    settings: Struct = _NO_SETTINGS
    make: "Callable[[Any], Judge] | None" = None
    prepare: Callable[[Trace], Trace] = lambda trace: trace
    cuts: tuple[str, ...] = ()
    exploration: Exploration | None = None
    run: Callable[[Trace], Awaitable[Reading]] | None = None
    close: Callable[[], Awaitable[None]] | None = None

    @cached_property
    def version(self) -> str:
        """32 hex digits over the prompt, the schema, the scoring and the settings, and what an exploration says."""
        identity: dict[str, object] = {
            "name": self.name,
            "fixed": self.fixed_parts,
            "layout": LAYOUT,
            "schema": self.schema,
            "scoring": self.scoring,
            "settings": self.settings,
        }
        if self.exploration is not None:
            identity["exploration"] = {"tools": self.exploration.tools, "texts": TEXTS}
        encoded = msgspec.json.encode(identity, order="deterministic")
        return hashlib.blake2b(encoded, digest_size=16).hexdigest()

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of its metrics, in order."""
        return tuple(metric.name for metric in self.metrics)

    @property
    def needs_in_words(self) -> tuple[str, ...]:
        """The needed inputs for display; alternatives are joined by `or`."""
        return tuple(need if isinstance(need, str) else " or ".join(need) for need in self.needs)

    def configured(self, values: Mapping[str, object]) -> "Judge":
        """Make the same judge with the settings of a `[judges.NAME]`.

        Raises:
            msgspec.ValidationError: An unknown key, a wrong type, or a value out of bounds.
        """
        settings = msgspec.convert(values, type(self.settings), strict=False)
        return self.make(settings) if self.make is not None else self

    def missing(self, trace: Trace) -> str | None:
        """Say in one sentence which needed input the trace lacks, or nothing."""
        for need in self.needs:
            names = (need,) if isinstance(need, str) else need
            present = [name for name in names if has_text(getattr(trace, name))]
            if not present:
                return f"the trace has no {' or '.join(names)}"
            if len(present) > 1 and not isinstance(need, AnyOf):
                return f"{' and '.join(present)} exclude each other: give one"
        return None


def has_text(value: object) -> bool:
    """Tell whether a field of a trace holds any text besides white space and characters that nobody sees."""
    if isinstance(value, str):
        return VISIBLE.search(value) is not None
    if isinstance(value, Document):
        return has_text(value.text)
    if isinstance(value, list):
        return any(has_text(item) for item in value)
    return value is not None
