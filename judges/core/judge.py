"""The definition of a judge: what it needs from a trace, what it asks, and how it reads and scores the answers.

Each module of ``judges.catalog`` defines one ``Judge`` named ``JUDGE``.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from judges.core.decision import Calibration
from judges.core.model import ModelKind, Tool
from judges.core.prompt import LAYOUT, VISIBLE, Prompt
from judges.core.verdict import Score
from tracejudge import Document, Trace

Answer = Any  # One answer of the judge model, as returned by the judge's ``read``; only its ``score`` knows the type.
# Names of trace fields. Of a tuple exactly one is needed; of an ``AnyOf`` at least one.
Needs = Sequence[str | tuple[str, ...]]
Unit = Literal["trace", "session"]


class PassingError(Exception):
    """A judge in Python did not run; another worker, or this one later, may run it."""


class AnyOf(tuple[str, ...]):
    """Names of trace fields of which at least one is needed."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a judge."""

    name: str
    scale: str  # Range of the raw rating, as ``0 or 1`` or ``1..5``.
    pass_rule: str | None  # When a score passes, in words; None for a metric without a pass rule.
    descriptive: bool = False  # Neither high nor low values are good, so the metric raises no alert.
    pass_at: float | None = None  # Lowest value, 0..1, that passes; None if the pass rule is not a threshold.

    @property
    def is_yes_no(self) -> bool:
        """Whether only two values exist, so that their share says everything about their distribution."""
        return self.scale == "0 or 1"

    @property
    def passes(self) -> str:
        """The pass rule, for display."""
        return self.pass_rule or ("descriptive" if self.descriptive else "no pass rule")


class NoSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a judge without any."""


_NO_SETTINGS: Final = NoSettings()


class AnsweredPrompt(NamedTuple):
    """One request of a judge with the parsed answer."""

    prompt: Prompt
    answer: Answer


class Reading(NamedTuple):
    """Scores computed from the answers; empty scores mean that the judge abstained."""

    scores: tuple[Score, ...]
    rationale: str | None = None
    details: Mapping[str, object] = {}


class Shortening(NamedTuple):
    """A way to shorten parts of a trace before it is too long, such as the results of tools."""

    count: Callable[[Trace], int]  # Number of parts that can be shortened.
    cut: Callable[[Trace, int], Trace]  # Shortens that many of them, from the largest down.


End = Literal["answer", "max_rounds", "max_time", "max_tokens", "max_usd"]  # The reason why an exploration ended.


class Toolbox(Protocol):
    """The tools over one trace."""

    @property
    def tools(self) -> Sequence[Tool]:
        """Definitions of the callable tools."""
        ...

    def call(self, name: str, arguments: str) -> str:
        """Call a tool with arguments as JSON written by a model, in a worker thread, for about a second at most.

        For an invalid call the result is a JSON object that starts with ``{"error"`` and says what to send instead;
        nothing is raised.
        """
        ...


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits after which a model is asked for its verdict. They apply to one attempt.

    An exploration that ran out of time is not retried. One that failed after its first answer, for example because the
    endpoint broke down, is retried until ``2 * max_rounds + 10`` calls were made in all attempts, and then ends
    unscored with ``over_budget``: it costs at most about three times the limits. An exploration that was never answered
    is retried like any other evaluation.
    """

    max_rounds: int = 30  # Answers with tool calls; the one after the last must be the verdict.
    max_tokens: int = 1_000_000  # Tokens of all requests and answers about one trace.
    max_usd: float | None = None  # Their cost; the model needs a price for it.


class Exploration(Struct, frozen=True):
    """The tools, limits and texts with which a model reads a trace."""

    open: Callable[[Trace], Toolbox]  # Creates the toolbox of a trace.
    limits: Limits = Limits()  # Limits of one attempt.
    tools: tuple[Tool, ...] = ()  # Definitions of the tools in every toolbox; part of the judge's version.
    texts: tuple[str, ...] = ()  # Texts for the model besides the results of tools; part of the judge's version.


RESULT: Final = "result"
"""The key in ``Reading.details`` of a result without a value, such as a text: scored, but without scores."""


class JudgeFailedError(Exception):
    """A judge in Python has no verdict. The message contains no text of the trace."""


MIN_OUTPUT_TOKENS: Final = 1024
_TOKENS_PER_DECISION: Final = 8  # Reserved; endpoints that report output tokens report about one an option.
# A safe estimate: tokenizers need fewer tokens for prose, and about as many for scripts far from Latin. An exact count
# would need each model's own tokenizer.
BYTES_PER_TOKEN: Final = 3


def text_tokens(*texts: str | None) -> int:
    """Estimate the tokens of texts, on the safe side."""
    return sum(len(text.encode("utf-8", "replace")) for text in texts if text) // BYTES_PER_TOKEN


def output_tokens_of_reasons(trace: Trace, _prompt: Prompt) -> int:
    """Bound an answer of reasons and a result: the reasons may go through the judged text statement by statement."""
    shown = (trace.output, trace.expected_response, *(trace.expected_facts or ()), *(trace.guidelines or ()))
    return MIN_OUTPUT_TOKENS + 2 * text_tokens(*shown)


@dataclass(frozen=True, slots=True)
class DecisionForm:
    """How a judge asks a decision model or a classifier: typed questions in place of instructions and an answer form.

    ``score`` receives in each ``AnsweredPrompt.answer`` one usable ``Decision`` for each question of the prompt, and
    the calibrations of the judge's metrics by name; a metric without one is uncalibrated.
    """

    prompts: Callable[[Trace], tuple[Prompt, ...]]  # Requests with ``questions``.
    fixed_parts: tuple[str, ...]  # Every fixed part and instruction that it may send; part of the version.
    score: Callable[[Trace, Sequence[AnsweredPrompt], Mapping[str, Calibration]], Reading]
    scoring: str  # Revision of the questions' order and of ``score``.
    has_pairs: bool = False  # Whether each question is a pair of evidence and claim, which classifiers can answer.
    options: int = 0  # The largest number of options of one question.


@dataclass(frozen=True)
class Judge:
    """The definition of one judge."""

    name: str  # Name in rules, metrics and spans.
    asks: str  # One sentence for the catalogue.
    metrics: tuple[Metric, ...]  # In the order of the scores.
    needs: Needs  # Inputs without which no model is asked.
    fixed_parts: tuple[str, ...]  # Every fixed part that it may send; part of the version.
    schema: Mapping[str, object]  # JSON schema of one answer.
    prompts: Callable[[Trace], tuple[Prompt, ...]]  # Requests for a trace, usually one; several are sent concurrently.
    read: Callable[[str], Answer]  # Parses one answer; raises only ``AnswerError``
    # Computes scores from the answers to all requests, in their order; never raises.
    score: Callable[[Trace, Sequence[AnsweredPrompt]], Reading]
    # Answer of the built-in lexical model to one request: an object for JSON, or a text.
    heuristic: Callable[[Trace, Prompt], object]
    scoring: str  # Revision of ``read``, ``check`` and ``score``. Raise it whenever either may judge differently.
    settings: Struct = _NO_SETTINGS  # Values of `[judges.NAME]`; part of the version.
    # Builds the same judge with other settings, of the type of ``settings``.
    make: "Callable[[Any], Judge] | None" = None
    # Completes a trace before its inputs are checked, for example with configured rules.
    prepare: Callable[[Trace], Trace] = lambda trace: trace
    # Trace fields that may be truncated when a trace exceeds the model's context, in this order.
    cuts: tuple[str, ...] = ()
    # Shortens what is left; it is named `results` in the details of a verdict.
    shortening: Shortening | None = None
    # Further needs, in one sentence on what the trace lacks, or None.
    lacks: Callable[[Trace], str | None] = lambda _trace: None
    # Builds the judge that reads a trace by tools if it is longer than the model takes.
    by_tools: "Callable[[Judge], Judge] | None" = None
    # Largest share of a trace's requests that may end without an answer for their own reason: the scores are then
    # computed from the others.
    max_missing: float = 0.0
    # Compares an answer with the material that was shown; raises ``InvalidAnswerError``.
    check: Callable[[Trace, Prompt, Answer], None] | None = None
    # Maximum number of tokens that the form of the answer to one request can need, without thinking.
    output_tokens: Callable[[Trace, Prompt], int] = output_tokens_of_reasons
    # Returns the complete lines of an answer that was cut off, empty if there is none; None if one answer is one
    # object, of which a part is of no use.
    whole_lines: Callable[[str], str] | None = None
    model: str | None = None  # Name of the model of the configuration that judges, whatever model a rule names.
    temperature: float | None = None  # Sent in place of 0.
    samples: int = 1  # How often the model is asked about one trace; more than once see ``judges.calling.samples``.
    # Tools by which the model reads the trace; None if the request shows everything. A judge with an exploration
    # makes one request.
    exploration: Exploration | None = None
    # Scores a trace in Python without a judge model; raises ``JudgeFailedError``.
    run: Callable[[Trace], Awaitable[Reading]] | None = None
    # The unit of one verdict: a trace, or a conversation, whose traces ``judges.core.sessions`` joins into one.
    unit: Unit = "trace"
    decision_form: DecisionForm | None = None  # None if decision models cannot be asked.
    # Of the form for decision models: its calibrations by metric, part of the version.
    calibrations: Mapping[str, Calibration] | None = None
    may_be_empty: tuple[str, ...] = ()  # Needed inputs of which an empty list says enough.
    # Releases what ``run`` holds; called in the same event loop after the last trace.
    close: Callable[[], Awaitable[None]] | None = None

    @cached_property
    def version(self) -> str:
        """32 hex digits: hash of everything that may change a score."""
        identity: dict[str, object] = {
            "name": self.name,
            "fixed": self.fixed_parts,
            "layout": LAYOUT,
            "schema": self.schema,
            "scoring": self.scoring,
            "settings": self.settings,
        }
        if self.temperature is not None:
            identity["temperature"] = self.temperature
        if self.samples != 1:
            identity["samples"] = self.samples
        if self.exploration is not None:
            identity["exploration"] = {"tools": self.exploration.tools, "texts": self.exploration.texts}
        if self.unit != "trace":
            identity["unit"] = self.unit
        if self.calibrations is not None:
            identity["calibrations"] = self.calibrations
        encoded = msgspec.json.encode(identity, order="deterministic")
        return hashlib.blake2b(encoded, digest_size=16).hexdigest()

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics, in order."""
        return tuple(metric.name for metric in self.metrics)

    @property
    def needs_in_words(self) -> tuple[str, ...]:
        """The needed inputs for display, alternatives joined by `or`."""
        return tuple(need if isinstance(need, str) else " or ".join(need) for need in self.needs)

    @property
    def scores_cut(self) -> bool:
        """Whether a trace is judged although documents were left out to fit; the setting ``score_cut``, if any."""
        # A verdict that neither passes nor fails biases no share.
        return bool(getattr(self.settings, "score_cut", all(metric.pass_rule is None for metric in self.metrics)))

    def configured(self, values: Mapping[str, object]) -> "Judge":
        """Build the same judge with the settings of a `[judges.NAME]`; raises ``msgspec.ValidationError``."""
        settings = msgspec.convert(values, type(self.settings), strict=False)
        return self.make(settings) if self.make is not None else self

    @property
    def forms(self) -> tuple[ModelKind, ...]:
        """The kinds of judge models that can be asked; none in Python."""
        if self.run is not None:
            return ()
        form = self.decision_form
        return (
            "chat",
            *(() if form is None else ("decisions",)),
            *(("classifier",) if form and form.has_pairs else ()),
        )

    def for_decisions(self, calibrations: Mapping[str, Calibration]) -> "Judge":
        """Build the form, with its own version, for models that answer typed questions, or raise ``ValueError``."""
        if (form := self.decision_form) is None:
            raise ValueError(f"{self.name} cannot be asked of a decision model: it has no form of typed questions")
        return replace(
            self,
            prompts=form.prompts,
            fixed_parts=form.fixed_parts,
            score=lambda trace, answered: form.score(trace, answered, calibrations),
            scoring=form.scoring,
            calibrations=calibrations,
            check=None,
            output_tokens=lambda _trace, prompt: _TOKENS_PER_DECISION * len(prompt.questions),
            whole_lines=None,
            exploration=None,
            by_tools=None,
        )

    def missing(self, trace: Trace) -> str | None:
        """Return one sentence on the needed input that the trace lacks, or None."""
        for need in self.needs:
            names = (need,) if isinstance(need, str) else need
            empty = [name for name in names if name in self.may_be_empty and field_of(trace, name) == []]
            present = empty or [name for name in names if has_text(field_of(trace, name))]
            if not present:
                return f"the trace has no {' or '.join(names)}"
            if len(present) > 1 and not isinstance(need, AnyOf):
                return f"{' and '.join(present)} exclude each other: give one"
        return self.lacks(trace)


def field_of(trace: Trace, name: str) -> object:
    """Return a field of a trace, or one of its tags as `tags.NAME`; None if it is absent."""
    field, dot, tag = name.partition(".")
    return (trace.tags or {}).get(tag) if dot else getattr(trace, field)


def has_text(value: object) -> bool:
    """Return whether a trace field contains a visible character, at any depth."""
    if isinstance(value, str):
        return VISIBLE.search(value) is not None
    if isinstance(value, Document):
        return has_text(value.text)
    if isinstance(value, list):
        return any(has_text(item) for item in value)
    return value is not None


RULE: Final = "at most 64 small letters, digits and '_', a letter first"  # The rule of ``is_name``, for error texts.
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


def is_name(text: str) -> bool:
    """Return whether a text is a valid name of a judge or metric."""
    return _NAME.fullmatch(text) is not None


FREE_FORMS: Final = ("text", "list", "object", "integer", "number", "label")  # Scales of results that have no value.


def has_value(judge: Judge) -> bool:
    """Return whether the results of a judge have values; texts, lists and objects have none."""
    return any(metric.scale not in FREE_FORMS for metric in judge.metrics)
