"""Judges as users define them, one of each kind that can be declared: hostile traces and broken answers go through all.

A new kind is one more row of ``data/user_judges.json``, made from the table a user would write.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tables import table

from judges.core.judge import Judge
from judges.custom import define
from judges.registry import catalogue


class UserJudge(NamedTuple):
    """A definition, two results of different worth that its model may give, and what each scores.

    Attributes:
        family: The name under which the tables of broken answers speak of its form.
    """

    family: str
    table: Mapping[str, object]
    good: object
    other: object
    good_score: float
    other_score: float


BY_NAME = {name: UserJudge(*row) for name, row in table("user_judges")["judges"].items()}
JUDGES: Mapping[str, Judge] = {
    **{name: judge for name, judge in catalogue().items() if judge.run is None},
    **{name: define(name, each.table) for name, each in BY_NAME.items()},
}
"""The built-in judges and these."""
