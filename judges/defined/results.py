"""The result that a definition declares: how it is asked for, read, and scored.

``declared`` checks the declaration. A ``Result`` then is all that a judge needs for its answers: ``form`` and
``schema`` ask, ``read`` reads, ``reading`` scores, ``metric`` describes, ``guess`` is the lexical model's answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from judges.answer import read_object, text_field
from judges.defined import misplaced
from judges.defined.definition import convert
from judges.defined.errors import DefinitionError, nearest, short
from judges.defined.scales.labels import LabelList, labelled
from judges.defined.scales.ranges import IntegerRange, NumberRange, ranged
from judges.defined.scales.scale import Scale, Value
from judges.defined.scales.truths import Boolean, YesNo
from judges.forms import yes_no
from judges.judge import Metric, Reading
from judges.prompt import OBJECT_RULES
from judges.verdict import Score

__all__ = ["SCORING", "Given", "Keys", "Result", "declared"]

SCORING: Final = "defined/1"
"""Revision of the reading and scoring here; part of the version of every judge that uses it."""

_WORDS: Final[Mapping[str, Scale]] = {"yes/no": YesNo(), "boolean": Boolean()}
_TABLES: Final = ("integer", "number", "labels")
_MAY_BE: Final = '"yes/no", "boolean", or a table with one of integer, number, labels'


class Keys(NamedTuple):
    """What the keys of an answer are called; ``rationale`` may not be asked for at all."""

    rationale: str | None = "rationale"
    result: str = "result"


_KEYS: Final = Keys()


class Given(NamedTuple):
    """An answer that was read; the rationale is without its opening."""

    rationale: str | None
    value: Value


@dataclass(frozen=True)
class Result:
    """One declared result and the keys of the answer that gives it."""

    scale: Scale
    keys: Keys = _KEYS

    @property
    def schema(self) -> Mapping[str, object]:
        """The JSON schema of an answer, the reasons first."""
        rationale = {} if self.keys.rationale is None else {self.keys.rationale: {"type": "string"}}
        properties = {**rationale, self.keys.result: self.scale.schema}
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    @property
    def form(self) -> str:
        """Ask for the answer: the end of a fixed part, its heading included."""
        count = "this one key" if self.keys.rationale is None else "these two keys, in this order"
        return f"How to answer\n{OBJECT_RULES} The object has {count}:\n{self.skeleton}"

    @property
    def skeleton(self) -> str:
        """The object of an answer with a remark behind each key."""
        lines = [(f'  "{self.keys.result}": {self.scale.placeholder}', self._asked)]
        if self.keys.rationale is not None:
            remark = f"your reasons, which begin with: {yes_no.OPENING}"
            lines.insert(0, (f'  "{self.keys.rationale}": "<text>",', remark))
        width = max(len(line) for line, _ in lines)
        return "\n".join(("{", *(f"{line:<{width}}   // {remark}" for line, remark in lines), "}"))

    @property
    def types(self) -> str:
        """Each key of an answer with the type of its value, one a line."""
        lines = [] if self.keys.rationale is None else [f"- `{self.keys.rationale}` (string): your reasons"]
        return "\n".join((*lines, f"- `{self.keys.result}` ({self.scale.type_name}): {self._asked}"))

    @property
    def declared(self) -> object:
        """The declaration with its defaults, for a judge's settings."""
        return self.scale.declared

    def metric(self, name: str) -> Metric:
        """Describe the one metric of a judge with this result."""
        return Metric(name, self.scale.words, self.scale.pass_rule, self.scale.descriptive, self.scale.pass_value)

    def read(self, text: str) -> Given:
        """Read an answer.

        Raises:
            AnswerError: The text is no such answer.
        """
        rationale_key, result_key = self.keys
        answer = read_object(text, (result_key,) if rationale_key is None else (rationale_key, result_key))
        rationale = None if rationale_key is None else yes_no.without_opening(text_field(answer, rationale_key))
        return Given(rationale, self.scale.read(answer, result_key))

    def reading(self, metric: str, given: Given) -> Reading:
        """Score an answer under the name of a metric; nothing where the model could not tell."""
        rating = self.scale.rate(given.value)
        if rating is None:
            return Reading((), given.rationale)
        return Reading((Score(metric, *rating),), given.rationale)

    def guess(self, share: float, reason: str) -> Mapping[str, object]:
        """Write the lexical model's answer: the value at a share of the best, 0..1, with a reason."""
        rationale = {} if self.keys.rationale is None else {self.keys.rationale: f"{yes_no.OPENING}. {reason}"}
        return {**rationale, self.keys.result: self.scale.at(share)}

    @property
    def _asked(self) -> str:
        follows = "" if self.keys.rationale is None else "follows from the reasons; "
        return f"{follows}{self.scale.asked}"


def declared(result: object, keys: Keys = _KEYS) -> Result:
    """Check the `result` of a definition.

    Args:
        result: The value as TOML gives it; `"yes/no"` where a definition has none.
        keys: What the keys of the answer are called.

    Raises:
        DefinitionError: It is none; its key begins with `result`.
    """
    if isinstance(result, str):
        if result not in _WORDS:
            raise DefinitionError("result", f"must be {_MAY_BE}")
        return Result(_WORDS[result], keys)
    if not isinstance(result, Mapping):
        raise DefinitionError("result", f"must be {_MAY_BE}")
    return Result(_from_table(result), keys)


def _from_table(table: Mapping[str, object]) -> Scale:
    found = [name for name in _TABLES if name in table]
    if len(found) > 1:
        raise DefinitionError(f"result.{found[1]}", f"stands beside {found[0]}; a judge has one result, take one out")
    if not found:
        unknown = next(iter(table), None)
        if unknown is None:
            raise DefinitionError("result", f"must be {_MAY_BE}")
        if whole := misplaced.example(unknown):
            raise DefinitionError(f"result.{unknown}", f"stands there without a scale; write it as {whole}")
        raise DefinitionError(f"result.{short(unknown)}", f"unknown key{nearest(unknown, _TABLES)}")
    match found[0]:
        case "integer":
            return ranged(convert(table, IntegerRange, "result"))
        case "number":
            return ranged(convert(table, NumberRange, "result"))
        case _:
            given = convert(table, LabelList, "result")
            numbers = given.labels if isinstance(given.labels, dict) else None
            return labelled(tuple(given.labels), numbers, given.passing)
