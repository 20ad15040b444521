"""The result that a definition declares: how it is requested, read and scored.

``checked_result`` checks the declaration. The ``Result`` then provides all that a judge needs for its answers: ``form``
and ``schema`` request it, ``read`` reads, ``score`` scores, ``metric`` describes, ``guess`` is the lexical answer.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from msgspec import structs

from judges.core.decision import Calibration, Decision, Kind, Question
from judges.core.judge import FREE_FORMS, RESULT, AnsweredPrompt, DecisionForm, Metric, Reading
from judges.core.prompt import OBJECT_RULES, Block, Prompt
from judges.core.verdict import Score
from judges.custom.definition import RESULT_EXAMPLES, DefinitionError, convert, nearest, short
from judges.custom.free_form import FreeForm, ObjectFields, checked_fields
from judges.custom.scales import (
    Boolean,
    IntegerRange,
    LabelList,
    NumberRange,
    Scale,
    Value,
    YesNo,
    checked_labels,
    checked_range,
    passing_of,
)
from judges.forms import typed_questions, yes_no
from judges.parsing.answer import object_schema, reasons_field
from judges.parsing.objects import read_object
from tracejudge import Trace

SCORING: Final = "defined/2"
"""Revision of reading and scoring; part of the version of every judge that uses this module."""
_WORDS: Final[Mapping[str, Scale]] = {
    "yes/no": YesNo(),
    **dict.fromkeys(("boolean", "bool"), Boolean()),
    **dict.fromkeys(("text", "string", "str"), FreeForm("text")),
    "list": FreeForm("list"),
    "any integer": FreeForm("integer"),
    "any number": FreeForm("number"),
    **dict.fromkeys(("object", "dict"), FreeForm("object")),
}
# Words for results that need more than a word, each with an example.
_NEEDS_MORE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("integer", "int"), RESULT_EXAMPLES["pass_at"]),
    **dict.fromkeys(("number", "float"), RESULT_EXAMPLES["number"]),
    **dict.fromkeys(("labels", "label"), RESULT_EXAMPLES["pass"]),
}
_TABLES: Final = ("integer", "number", "labels", "object")
_MAY_BE: Final = '"yes/no", "boolean", "text", "list", "object", or a table with one of integer, number, labels, object'


class AnswerKeys(NamedTuple):
    """The keys of an answer; ``rationale`` is None if no reasons are requested."""

    rationale: str | None = "rationale"
    result: str = "result"


_KEYS: Final = AnswerKeys()


class ParsedAnswer(NamedTuple):
    """An answer that was read; the rationale is without its fixed opening."""

    rationale: str | None
    value: Value


@dataclass(frozen=True)
class Result:
    """One declared result and the keys of the answer that contains it."""

    scale: Scale
    keys: AnswerKeys = _KEYS

    @property
    def schema(self) -> Mapping[str, object]:
        """The JSON schema of an answer, the reasons first; empty for an object with any keys."""
        if not self.scale.schema:
            return {}
        rationale = {} if self.keys.rationale is None else {self.keys.rationale: {"type": "string"}}
        properties = {**rationale, self.keys.result: self.scale.schema}
        return object_schema(properties)

    @property
    def form(self) -> str:
        """The request for the answer, which ends a fixed part: a heading, and the object with a remark for each key."""
        count = "this one key" if self.keys.rationale is None else "these two keys, in this order"
        lines = [(f'  "{self.keys.result}": {self.scale.placeholder}', self._instruction)]
        if self.keys.rationale is not None:
            lines.insert(0, (f'  "{self.keys.rationale}": "<text>",', yes_no.REASONS))
        width = max(len(line) for line, _ in lines)
        skeleton = "\n".join(("{", *(f"{line:<{width}}   // {remark}" for line, remark in lines), "}"))
        return f"How to answer\n{OBJECT_RULES} The object has {count}:\n{skeleton}"

    @property
    def types(self) -> str:
        """Each key of an answer with the type of its value, one a line."""
        lines = [] if self.keys.rationale is None else [f"- `{self.keys.rationale}` (string): your reasons"]
        return "\n".join((*lines, f"- `{self.keys.result}` ({self.scale.type_name}): {self._instruction}"))

    @property
    def _instruction(self) -> str:
        follows = "" if self.keys.rationale is None else "follows from the reasons; "
        return f"{follows}{self.scale.instruction}"

    @property
    def declaration(self) -> object:
        """The declaration with its defaults, for a judge's settings."""
        return self.scale.declaration

    def metric(self, name: str) -> Metric:
        """Describe the one metric of a judge with this result."""
        return Metric(name, self.scale.words, self.scale.pass_rule, self.scale.descriptive, self.scale.pass_value)

    def read(self, text: str) -> ParsedAnswer:
        """Read an answer, or raise ``AnswerError``."""
        rationale_key, result_key = self.keys
        keys = (result_key,) if rationale_key is None else (rationale_key, result_key)
        answer = read_object(text, keys, deciding=(result_key,), value=self.scale.read)
        rationale = None if rationale_key is None else yes_no.without_opening(reasons_field(answer, rationale_key))
        return ParsedAnswer(rationale, self.scale.read(answer, result_key))

    def score(self, metric: str, answered: Sequence[AnsweredPrompt]) -> Reading:
        """Score the one answer under the name of a metric; no score if it has no value or the model cannot tell."""
        answer: ParsedAnswer = answered[0].answer
        if self.scale.words in FREE_FORMS:
            return Reading((), answer.rationale, {RESULT: answer.value})
        rating = self.scale.rate(answer.value)
        scores = () if rating is None else (Score(metric, *rating),)
        return Reading(scores, answer.rationale)

    def decision_form(
        self, metric: str, task: str, blocks: Callable[[Trace], tuple[Block, ...]]
    ) -> DecisionForm | None:
        """Build the form of one question about the material of ``blocks``; None if the result has no options."""
        values = tuple(value for value, _ in self.scale.options())
        options = tuple(option for _, option in self.scale.options())
        if not options:
            return None
        fixed, kind = typed_questions.fixed_part(), "score" if self.scale.type_name == "integer" else "choice"
        if len(options) == 1:
            question = Question("predicate", f"The right answer to this task is {options[0].value}.\n\n{task}")
        else:
            question = Question(cast("Kind", kind), task, options)

        def score(
            _trace: Trace, answered: Sequence[AnsweredPrompt], calibrations: Mapping[str, Calibration]
        ) -> Reading:
            answer: Decision = answered[0].answer[0]
            if question.kind != "predicate":
                return self._decided(metric, values, answer, calibrations)
            result = typed_questions.binary(metric, answer.probability, calibrations)
            if self.scale.type_name == "boolean":
                result = structs.replace(result, label=str(result.passed).lower())
            return Reading((result,), details=typed_questions.details({metric: answer.probability}, calibrations))

        meanings = (f"{value}: {meaning}" for value, meaning in question.options)
        return DecisionForm(
            prompts=lambda trace: (Prompt(fixed, blocks(trace), questions=(question,)),),
            fixed_parts=(fixed, question.instructions, *meanings),
            score=score,
            scoring="defined, decisions/1",
            options=len(question.options),
        )

    def _decided(
        self, metric: str, values: Sequence[Value], answer: Decision, calibrations: Mapping[str, Calibration]
    ) -> Reading:
        """Score a choice or levels: the expected value, and the probability of the options that pass."""
        ratings = [rating for value in values if (rating := self.scale.rate(value)) is not None]
        weighed, best = list(zip(answer.probabilities, ratings, strict=True)), ratings[answer.best]
        value = sum(share * rating.value for share, rating in weighed)
        raw = best.raw
        if best.label is None:
            raw = sum(share * float(rating.raw) for share, rating in weighed)
        if best.passed is None:
            return Reading((Score(metric, value, raw, best.label),))
        passing = sum(share for share, rating in weighed if rating.passed)
        probability, passed = typed_questions.corrected(metric, passing, calibrations)
        # Labels without numbers are worth 1 if they pass, which has no mean.
        value = float(passed) if isinstance(best.raw, str) else value
        details = typed_questions.details({metric: passing}, calibrations)
        return Reading((Score(metric, value, raw, best.label, passed, probability=probability),), details=details)

    def guess(self, share: float, reason: str) -> Mapping[str, object]:
        """Return the lexical model's answer: the value at a share of the best, 0..1, with a reason."""
        rationale = {} if self.keys.rationale is None else {self.keys.rationale: f"{yes_no.OPENING}. {reason}"}
        return {**rationale, self.keys.result: self.scale.choose(share)}


def checked_result(result: object) -> Result:
    """Check the `result` of a definition, as TOML gives it, or raise ``DefinitionError``."""
    if isinstance(result, str) and result in _WORDS:
        return Result(_WORDS[result])
    if isinstance(result, str) and result in _NEEDS_MORE:
        raise DefinitionError("result", f"needs a scale; write it as {_NEEDS_MORE[result]}")
    if isinstance(result, list | tuple) and result and all(isinstance(label, str) for label in result):
        if passing_of(result) is None:
            first, *failing = (json.dumps(label, ensure_ascii=False) for label in result)
            form = f"result = {{ labels = [{', '.join((first, *failing))}], pass = [{first}] }}"
            raise DefinitionError("result", f"does not say which labels pass; write it as {form}")
        result = {"labels": tuple(result)}
    if not isinstance(result, Mapping) or not result:
        raise DefinitionError("result", f"must be {_MAY_BE}")
    return Result(_scale(result))


def _scale(result: Mapping[str, object]) -> Scale:
    """Check a declaration that is a table."""
    tables = [name for name in _TABLES if name in result]
    if len(tables) > 1:
        raise DefinitionError(
            f"result.{tables[1]}", f"cannot be combined with {tables[0]}; a judge has one result, take one out"
        )
    if not tables:
        unknown = next(iter(result))
        if whole := RESULT_EXAMPLES.get(unknown):
            raise DefinitionError(f"result.{unknown}", f"needs a scale; write it as {whole}")
        raise DefinitionError(f"result.{short(unknown)}", f"unknown key{nearest(unknown, _TABLES)}", "unknown-key")
    if tables[0] == "integer":
        return checked_range(convert(result, IntegerRange, "result"))
    if tables[0] == "number":
        return checked_range(convert(result, NumberRange, "result"))
    if tables[0] == "object":
        return checked_fields(convert(result, ObjectFields, "result").object)
    listed = convert(result, LabelList, "result")
    numbers = listed.labels if isinstance(listed.labels, dict) else None
    if not listed.rated and (numbers or listed.passing):
        raise DefinitionError("result.rated", "is false, so no label has a number or passes; take one of them out")
    return checked_labels(tuple(listed.labels), numbers, listed.passing, rated=listed.rated)
