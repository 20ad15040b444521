"""The result that a definition declares: how it is requested, read and scored.

``checked_result`` checks the declaration. The ``Result`` then provides all that a judge needs for its answers: ``form``
and ``schema`` request it, ``read`` reads, ``score`` scores, ``metric`` describes, ``guess`` is the lexical answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from judges.core.judge import Answered, Metric, Reading
from judges.core.prompt import OBJECT_RULES
from judges.core.verdict import Score
from judges.custom.definition import RESULT_EXAMPLES, DefinitionError, convert, nearest, short
from judges.custom.label_scale import LabelList, checked_labels
from judges.custom.scales import Boolean, IntegerRange, NumberRange, Scale, Value, YesNo, checked_range
from judges.forms import yes_no
from judges.parsing.answer import read_object, text_field

SCORING: Final = "defined/1"
"""Revision of reading and scoring; part of the version of every judge that uses this module."""
_WORDS: Final[Mapping[str, Scale]] = {"yes/no": YesNo(), "boolean": Boolean()}
_TABLES: Final = ("integer", "number", "labels")
_MAY_BE: Final = '"yes/no", "boolean", or a table with one of integer, number, labels'


class AnswerKeys(NamedTuple):
    """The keys of an answer; ``rationale`` is None where no reasons are requested."""

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
        """The JSON schema of an answer, the reasons first."""
        rationale = {} if self.keys.rationale is None else {self.keys.rationale: {"type": "string"}}
        properties = {**rationale, self.keys.result: self.scale.schema}
        return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}

    @property
    def form(self) -> str:
        """The request for the answer, which ends a fixed part: a heading, and the object with a remark for each key."""
        count = "this one key" if self.keys.rationale is None else "these two keys, in this order"
        lines = [(f'  "{self.keys.result}": {self.scale.placeholder}', self._instruction)]
        if self.keys.rationale is not None:
            remark = f"your reasons, which begin with: {yes_no.OPENING}"
            lines.insert(0, (f'  "{self.keys.rationale}": "<text>",', remark))
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
        answer = read_object(text, (result_key,) if rationale_key is None else (rationale_key, result_key))
        rationale = None if rationale_key is None else yes_no.without_opening(text_field(answer, rationale_key))
        return ParsedAnswer(rationale, self.scale.read(answer, result_key))

    def score(self, metric: str, answered: Sequence[Answered]) -> Reading:
        """Score the one answer under the name of a metric; no score where the model could not tell."""
        answer: ParsedAnswer = answered[0].answer
        rating = self.scale.rate(answer.value)
        scores = () if rating is None else (Score(metric, *rating),)
        return Reading(scores, answer.rationale)

    def guess(self, share: float, reason: str) -> Mapping[str, object]:
        """Return the lexical model's answer: the value at a share of the best, 0..1, with a reason."""
        rationale = {} if self.keys.rationale is None else {self.keys.rationale: f"{yes_no.OPENING}. {reason}"}
        return {**rationale, self.keys.result: self.scale.at(share)}


def checked_result(result: object) -> Result:
    """Check the `result` of a definition, as TOML gives it, or raise ``DefinitionError``."""
    if isinstance(result, str) and result in _WORDS:
        return Result(_WORDS[result])
    if not isinstance(result, Mapping) or not result:
        raise DefinitionError("result", f"must be {_MAY_BE}")
    found = [name for name in _TABLES if name in result]
    if len(found) > 1:
        raise DefinitionError(f"result.{found[1]}", f"stands beside {found[0]}; a judge has one result, take one out")
    if not found:
        unknown = next(iter(result))
        if whole := RESULT_EXAMPLES.get(unknown):
            raise DefinitionError(f"result.{unknown}", f"stands there without a scale; write it as {whole}")
        raise DefinitionError(f"result.{short(unknown)}", f"unknown key{nearest(unknown, _TABLES)}")
    scale: Scale
    if found[0] == "integer":
        scale = checked_range(convert(result, IntegerRange, "result"))
    elif found[0] == "number":
        scale = checked_range(convert(result, NumberRange, "result"))
    else:
        listed = convert(result, LabelList, "result")
        numbers = listed.labels if isinstance(listed.labels, dict) else None
        scale = checked_labels(tuple(listed.labels), numbers, listed.passing)
    return Result(scale)
