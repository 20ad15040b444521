"""What a judge is: one frozen definition of what it needs, asks, reads and scores.

A judge file makes one ``Judge`` named ``JUDGE``; the catalogue finds it by itself.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import msgspec

from judges.prompt import LAYOUT, Prompt
from judges.verdict import Score
from tracejudge import Document, Trace

__all__ = ["Answer", "Judge", "Metric", "Reading", "has_text"]

Answer = Mapping[str, object]
"""One answer of the judge model, read and checked by the judge's ``read``."""

Needs = Sequence[str | tuple[str, ...]]
"""Names of trace fields; a tuple means exactly one of them."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure that a judge gives.

    Attributes:
        scale: The scale of the raw rating in words, as ``0 or 1`` or ``1..5``.
        pass_rule: When a score passes, in words; absent for descriptive metrics.
    """

    name: str
    scale: str
    pass_rule: str | None


class Reading(NamedTuple):
    """What a judge makes of its answers. No scores and no error means that it abstained."""

    scores: tuple[Score, ...]
    rationale: str | None = None
    details: Mapping[str, object] = {}


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
        prompts: The requests for a trace, usually one.
        read: Reads one answer; raises ``AnswerError``.
        score: Turns all answers on a trace into scores.
        heuristic: The answer of the built-in lexical model, in this judge's form.
        scoring: Revision of ``read`` and ``score``; raise it whenever either may judge differently.
        settings: What the configuration changed; part of the version.
        cuts: Trace fields of which parts may be left out when a trace is too long for the model, in this order.
    """

    name: str
    asks: str
    metrics: tuple[Metric, ...]
    needs: Needs
    fixed_parts: tuple[str, ...]
    schema: Mapping[str, object]
    prompts: Callable[[Trace], tuple[Prompt, ...]]
    read: Callable[[str], Answer]
    score: Callable[[Trace, Sequence[Answer]], Reading]
    heuristic: Callable[[Trace], Mapping[str, object]]
    scoring: str
    settings: Mapping[str, object] = field(default_factory=dict)
    cuts: tuple[str, ...] = ()

    @cached_property
    def version(self) -> str:
        """32 hex digits over the prompt, the schema, the scoring and the settings."""
        identity = {
            "name": self.name,
            "fixed": self.fixed_parts,
            "layout": LAYOUT,
            "schema": self.schema,
            "scoring": self.scoring,
            "settings": dict(self.settings),
        }
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

    def missing(self, trace: Trace) -> str | None:
        """Say in one sentence which needed input the trace lacks, or nothing."""
        for need in self.needs:
            names = (need,) if isinstance(need, str) else need
            present = [name for name in names if has_text(getattr(trace, name))]
            if not present:
                return f"the trace has no {' or '.join(names)}"
            if len(present) > 1:
                return f"{' and '.join(present)} exclude each other: give one"
        return None


def has_text(value: object) -> bool:
    """Tell whether a field of a trace holds any text besides white space."""
    if isinstance(value, str):
        return bool(value) and not value.isspace()
    if isinstance(value, Document):
        return has_text(value.text)
    if isinstance(value, list):
        return any(has_text(item) for item in value)
    return value is not None
