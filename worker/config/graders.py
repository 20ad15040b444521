"""Graders: a model of the configuration, several models together (a panel), or the worker itself for judges in code.

The judge model of a grader names its evaluations, batches and verdicts. That of a panel lists its members and how they
are combined, as ``majority(gpt-4.1-mini,llama)``; a panel sends no requests, its members do. Judges in code have the
judge model ``code``, whatever model their rules name.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, get_args

from judges.agreement.combine import Combine
from judges.core.judge import Judge
from worker.config.settings import Rule, Settings

CODE_MODEL: Final = "code"
_PANEL: Final = re.compile(rf"({'|'.join(get_args(Combine))})\(.*\)", re.DOTALL)


class Grader(NamedTuple):
    """One grader.

    Attributes:
        name: The name of its settings, stored in batches beside the judge model.
        judge_model: The judge model of its verdicts.
        members: The judge models of a panel, sorted; empty for other graders.
        combine: How the members are combined.
    """

    name: str
    judge_model: str
    members: tuple[str, ...] = ()
    combine: Combine = "majority"


CODE: Final = Grader(f"{CODE_MODEL}()", CODE_MODEL)
"""The grader of judges in code."""


def panel(combine: Combine, judge_models: Iterable[str]) -> Grader:
    """Make a panel of several models."""
    # Sorted: the order in a rule must not make another series.
    members = tuple(sorted(judge_models))
    name = f"{combine}({','.join(members)})"
    return Grader(name, name, members, combine)


def is_panel(judge_model: str) -> bool:
    """Return whether a judge model is that of a panel, of this or another configuration."""
    return _PANEL.fullmatch(judge_model) is not None


def queue_label(judge_model: str) -> str:
    """Return the label of the Celery queue of a judge model; all panels share one."""
    return "panel" if is_panel(judge_model) else judge_model


def is_reserved(name: str) -> bool:
    """Return whether a judge model, or the name of a model's settings, belongs to a panel or to judges in code."""
    return is_panel(name) or name == CODE.name


class Graders:
    """The graders of one configuration.

    Attributes:
        code: The judges in code.
        own: The name of the model of each judge that names one.
        panels: The panels by judge model.
        combined: Judges with judge models whose verdicts a panel combines.
    """

    def __init__(self, settings: Settings, judges: Mapping[str, Judge]) -> None:
        self.code = frozenset(name for name, judge in judges.items() if judge.run is not None)
        self.own = {name: judge.model for name, judge in judges.items() if judge.model is not None}
        self._settings = settings
        self._models = {name: Grader(name, model.judge_model) for name, model in settings.models.items()}
        alone = self.code.union(self.own)
        asking = (rule for rule in settings.rules if not alone.issuperset(rule.judges))
        panels = [(rule, grader) for rule in asking if (grader := _panel_of(settings, rule)) is not None]
        self.panels = {grader.judge_model: grader for _, grader in panels}
        self.combined = frozenset(
            (judge, member)
            for rule, grader in panels
            for judge in rule.judges
            for member in grader.members
            if judge not in alone
        )
        self._named = {CODE.name: CODE, **self._models, **self.panels}

    @property
    def outvoted(self) -> frozenset[tuple[str, str]]:
        """Judges with judge models whose verdicts rules use only as members of a panel."""
        alone = (
            (judge, name)
            for rule in self._settings.rules
            for judge in rule.judges
            if rule.combine is None or judge in self.own
            for name in self.models_of(rule, judge)
        )
        return self.combined - {(judge, self._models[name].judge_model) for judge, name in alone}

    def of(self, rule: Rule, judge: str) -> tuple[str, ...]:
        """Name the graders of a rule for one judge: the members of a panel before the panel."""
        if judge in self.code:
            return (CODE.name,)
        models, together = self.models_of(rule, judge), None if judge in self.own else _panel_of(self._settings, rule)
        return models if together is None else (*models, together.name)

    def models_of(self, rule: Rule, judge: str) -> tuple[str, ...]:
        """Name the models that a rule sends traces to for one judge in words: the judge's own, or those of the rule."""
        return (self.own[judge],) if judge in self.own else self._settings.models_of(rule)

    def for_judge(self, judge: str, model: str) -> Grader:
        """Return the grader of a judge for a named model, where no rule applies."""
        return CODE if judge in self.code else self._models[self.own.get(judge, model)]

    def find(self, name: str, judge_model: str) -> Grader | None:
        """Return the grader that a batch names; None where the configuration has no such one."""
        named = self._named.get(name)
        return named if named is not None and named.judge_model == judge_model else None

    def has(self, name: str) -> bool:
        """Return whether there is a grader with this name."""
        return name in self._named

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the configured models."""
        return tuple(self._models)

    def named(self, name: str) -> Grader:
        """Return the grader with this name."""
        return self._named[name]


def _panel_of(settings: Settings, rule: Rule) -> Grader | None:
    if rule.combine is None:
        return None
    return panel(rule.combine, [settings.models[name].judge_model for name in rule.models])


def providers(settings: Settings) -> dict[str, str]:
    """Return the provider of each judge model: `code` for judges in code, the members' for a panel if all share it."""
    known: dict[str, str] = {model.judge_model: model.provider for model in settings.models.values()}
    panels = (found for rule in settings.rules if (found := _panel_of(settings, rule)) is not None)
    members = {grader.judge_model: {known[member] for member in grader.members} for grader in panels}
    # Panels of several providers are left out: no single name is true of them.
    alike = {name: found.pop() for name, found in members.items() if len(found) == 1}
    return {**known, **alike, CODE_MODEL: CODE_MODEL}
