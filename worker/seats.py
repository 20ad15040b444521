"""Who judges: a model of the configuration, several models together, or the worker itself for a judge in code.

Each seat has its judge model, under which evaluations, batches and verdicts stand. That of a panel names how its
members are combined and who they are, as ``majority(gpt-4.1-mini,llama)``; it asks nobody, for its members are asked
under their own names. Judges in code bear ``code``, whatever model their rules name.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, get_args

from judges.combine import Combine
from judges.judge import Judge
from worker.settings import Rule, Settings

__all__ = ["CODE", "Seat", "Seats", "is_panel", "is_reserved", "panel", "providers"]

CODE_MODEL: Final = "code"
_PANEL: Final = re.compile(rf"({'|'.join(get_args(Combine))})\(.*\)", re.DOTALL)


class Seat(NamedTuple):
    """Who judges.

    Attributes:
        name: The name of its settings, as batches bear it beside the judge model.
        judge_model: The judge model of its verdicts.
        members: The judge models of a panel, sorted; nothing where it is none.
        combine: How the members are combined.
    """

    name: str
    judge_model: str
    members: tuple[str, ...] = ()
    combine: Combine = "majority"


CODE: Final = Seat(f"{CODE_MODEL}()", CODE_MODEL)
"""Where judges in code sit."""


def panel(combine: Combine, judge_models: Iterable[str]) -> Seat:
    """Seat several models together; their order changes nothing."""
    members = tuple(sorted(judge_models))
    name = f"{combine}({','.join(members)})"
    return Seat(name, name, members, combine)


def is_panel(judge_model: str) -> bool:
    """Tell whether a judge model is a panel's, whichever configuration has seated it."""
    return _PANEL.fullmatch(judge_model) is not None


def is_reserved(name: str) -> bool:
    """Tell whether a judge model, or the name of a model's settings, would be taken for a seat of another kind."""
    return is_panel(name) or name == CODE.name


class Seats:
    """All seats of one configuration."""

    def __init__(self, settings: Settings, judges: Mapping[str, Judge]) -> None:
        """Take models and rules from the settings."""
        self.code = frozenset(name for name, judge in judges.items() if judge.run is not None)
        """The judges in code."""
        self._rules = settings.rules
        self._models = {name: Seat(name, model.judge_model) for name, model in settings.models.items()}
        asking = (rule for rule in settings.rules if not self.code.issuperset(rule.judges))
        panels = [(rule, seat) for rule in asking if (seat := self._panel(rule)) is not None]
        self.panels = {seat.judge_model: seat for _, seat in panels}
        """The panels by judge model, which is their name too."""
        self.combined = frozenset(
            (judge, member)
            for rule, seat in panels
            for judge in rule.judges
            for member in seat.members
            if judge not in self.code
        )
        """What is combined for some rule: judges with judge models."""
        self._named = {CODE.name: CODE, **self._models, **self.panels}

    @property
    def outvoted(self) -> frozenset[tuple[str, str]]:
        """Judges with judge models whose verdict no rule wants but as a part of a panel's."""
        alone = (
            (judge, name)
            for rule in self._rules
            if rule.combine is None
            for name in rule.models
            for judge in rule.judges
        )
        return self.combined - {(judge, self._models[name].judge_model) for judge, name in alone}

    def of(self, rule: Rule, judge: str) -> tuple[str, ...]:
        """Name the seats that judge for a rule by one judge: the members of a panel before the panel."""
        if judge in self.code:
            return (CODE.name,)
        together = self._panel(rule)
        return rule.models if together is None else (*rule.models, together.name)

    def for_judge(self, judge: str, model: str) -> Seat:
        """Say who judges by one judge where no rule says it, but the name of a model does."""
        return CODE if judge in self.code else self._models[model]

    def find(self, name: str, judge_model: str) -> Seat | None:
        """Find a seat by what a batch says of it; None where the configuration has none such."""
        named = self._named.get(name)
        return named if named is not None and named.judge_model == judge_model else None

    def named(self, name: str) -> Seat:
        """Find a seat of this configuration by its name."""
        return self._named[name]

    def _panel(self, rule: Rule) -> Seat | None:
        if rule.combine is None:
            return None
        return panel(rule.combine, [self._models[name].judge_model for name in rule.models])


def providers(settings: Settings) -> dict[str, str]:
    """Tell the provider of each judge model; `code` of judges in code, and of a panel that of its members if it is one.

    Other panels are left out: they ask nobody.
    """
    known: dict[str, str] = {model.judge_model: model.provider for model in settings.models.values()}
    members = {name: {known[member] for member in seat.members} for name, seat in Seats(settings, {}).panels.items()}
    alike = {name: found.pop() for name, found in members.items() if len(found) == 1}
    return {**known, **alike, CODE_MODEL: CODE_MODEL}
