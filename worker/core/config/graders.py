"""Graders: a model of the configuration, several models together (a panel), or the worker itself for judges in code.

The judge model of a grader names its evaluations, batches and verdicts. That of a panel lists its members and how they
are combined, as ``majority(gpt-6-luna,llama)``; a panel sends no requests, its members do. Judges in code have the
judge model ``code``, whatever model their rules name.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple, get_args

from judges.core.combine import GROUNDED_AND_RELEVANT, JUDGE_PAIR, Combine
from judges.core.judge import Judge
from judges.core.model import ModelSettings
from judges.models.registry import decides, judge_for
from judges.registry import catalogue
from worker.core.config.settings import COMBINE, Rule, Settings

CODE_MODEL: Final = "code"
_PANEL: Final = re.compile(rf"({'|'.join(get_args(Combine))})\(.*\)", re.DOTALL)


class JudgeGrader(NamedTuple):
    """An evaluation that a rule asks for: a judge and the name of a grader."""

    judge: str
    grader: str


class Grader(NamedTuple):
    """One grader."""

    name: str  # The name of its settings, stored in batches beside the judge model.
    judge_model: str  # The judge model of its verdicts.
    members: tuple[str, ...] = ()  # The judge models of a panel, sorted; empty for other graders.
    combine: Combine = "majority"  # How the members are combined.


CODE: Final = Grader(f"{CODE_MODEL}()", CODE_MODEL)  # The grader of judges in code.


def make_panel(combine: Combine, judge_models: Iterable[str]) -> Grader:
    """Make a panel of several models."""
    # Members are sorted, because their order in a rule must not make another series.
    members = tuple(sorted(judge_models))
    name = f"{combine}({','.join(members)})"
    return Grader(name, name, members, combine)


def is_panel(judge_model: str) -> bool:
    """Return whether a judge model belongs to a panel, of this or another configuration."""
    return _PANEL.fullmatch(judge_model) is not None


def queue_label(judge_model: str) -> str:
    """Return the label of the Celery queue of a judge model; all panels share one."""
    return "panel" if is_panel(judge_model) else judge_model


def is_reserved(name: str) -> bool:
    """Return whether a judge model, or the name of a model's settings, belongs to a panel or to judges in code."""
    return is_panel(name) or name == CODE.name


def calibrate_judge(settings: Settings, judge: Judge, model: ModelSettings) -> Judge:
    """Return a judge in the form that a model is asked in, with calibrations and samples, or ``ValueError``."""
    own = [row for row in settings.calibrations if (row.judge, row.model) == (judge.name, model.judge_model)]
    form = judge_for(judge, model, {row.metric_of(judge): row.calibration for row in own})
    rules = [rule for rule in settings.rules if judge.name in rule.judges]
    # Decisions are alike each time, as are verdicts of judges in code.
    if max((rule.samples for rule in rules), default=1) == 1 or judge.run is not None or decides(model):
        return form
    names = {name for name, other in settings.models.items() if other.judge_model == model.judge_model}
    names.update(alias for alias, models in settings.aliases.items() if not names.isdisjoint(models))
    asking = [rule for rule in rules if not names.isdisjoint(rule.models)]
    # No rule may name the model, as a second model or one of a replay.
    return replace(form, samples=max(rule.samples for rule in asking or rules))


def judge_of_panel(judge: Judge, members: Sequence[Judge]) -> Judge:
    """Return the judge whose version a panel's verdicts have, from the judge as each member is asked."""
    versions = sorted({member.version for member in members})
    # With chat models alone the version is the version of the judge, as before there were other models.
    return judge if versions == [judge.version] else replace(judge, scoring=" ".join((judge.scoring, *versions)))


class Graders:
    """The graders of one configuration, and the judges as their models are asked."""

    def __init__(self, settings: Settings, judges: Mapping[str, Judge]) -> None:
        # The judges in code.
        self.code_judges = frozenset(name for name, judge in judges.items() if judge.run is not None)
        named = {name for rule in settings.rules for name in rule.judges}
        # Whether any of them is judged here: one of the user's, or a built-in one that a rule names.
        self.serves_code = not self.code_judges.isdisjoint(named.union(judges.keys() - catalogue().keys()))
        # The name of the model of each judge that names one.
        self.model_by_judge = {name: judge.model for name, judge in judges.items() if judge.model is not None}
        self._settings = settings
        self._aliases = settings.aliases
        self._judges = judges
        # Returns a judge, by name, as a judge model is asked, with its own version; None if the judge is unknown or
        # cannot be asked. A judge model that no settings have is taken for one that writes text.
        self.judge_form: Callable[[str, str], Judge | None] = cache(self._form)
        self._models = {name: Grader(name, model.judge_model) for name, model in settings.models.items()}
        without_panel = self.code_judges.union(self.model_by_judge)
        asking = (rule for rule in settings.rules if not without_panel.issuperset(rule.judges))
        panels = [(rule, grader) for rule in asking if (grader := _find_panel(settings, rule)) is not None]
        self.panels = {grader.judge_model: grader for _, grader in panels}  # The panels by judge model.
        # Judges with judge models whose verdicts a panel combines.
        self.combined_by_panels = frozenset(
            (judge, member)
            for rule, grader in panels
            for judge in rule.judges
            for member in grader.members
            if judge not in without_panel
        )
        pairs = [grader for rule in settings.rules for grader in self._pair_panels(rule)]
        self.panels |= {grader.judge_model: grader for grader in pairs}
        self.combined_by_panels |= {(judge, grader.members[0]) for grader in pairs for judge in JUDGE_PAIR}
        self._named = {CODE.name: CODE, **self._models, **self.panels}

    @property
    def only_in_panels(self) -> frozenset[tuple[str, str]]:
        """Judges with judge models whose verdicts rules use only as members of a panel."""
        single = (
            (judge, name)
            for rule in self._settings.rules
            for judge in rule.judges
            if COMBINE.read(rule) is None or judge in self.model_by_judge
            for name in self.models_of(rule, judge)
        )
        return self.combined_by_panels - {(judge, self._models[name].judge_model) for judge, name in single}

    def grader_names(self, rule: Rule, judge: str) -> tuple[str, ...]:
        """Name the graders of a rule for one judge: the members of a panel before the panel."""
        if judge in self.code_judges:
            return (CODE.name,)
        models = self.models_of(rule, judge)
        together = None if judge in self.model_by_judge else _find_panel(self._settings, rule)
        return models if together is None else (*models, together.name)

    def evaluations(self, rule: Rule) -> tuple[JudgeGrader, ...]:
        """Name the judges of a rule with their graders; with both of ``JUDGE_PAIR`` also the panel that joins them."""
        single = [JudgeGrader(judge, name) for judge in rule.judges for name in self.grader_names(rule, judge)]
        return (*single, *(JudgeGrader(GROUNDED_AND_RELEVANT.name, grader.name) for grader in self._pair_panels(rule)))

    def _pair_panels(self, rule: Rule) -> list[Grader]:
        """Return a panel of one member for each model that a rule asks for both parts of `grounded_and_relevant`."""
        if not JUDGE_PAIR.keys() <= set(rule.judges):
            return []
        first, second = (self.models_of(rule, judge) for judge in JUDGE_PAIR)
        return [make_panel("all", [self._models[name].judge_model]) for name in first if name in second]

    def models_of(self, rule: Rule, judge: str) -> tuple[str, ...]:
        """Name the models that a rule sends traces to for one judge in words: the judge's own, or those of the rule."""
        return (self.model_by_judge[judge],) if judge in self.model_by_judge else rule.first_models(self._aliases)

    def find_grader_for(self, judge: str, model: str) -> Grader:
        """Return the grader of a judge for a named model, if no rule applies."""
        return CODE if judge in self.code_judges else self._models[self.model_by_judge.get(judge, model)]

    def version(self, judge: str, judge_model: str) -> str:
        """Return the version of a judge for a judge model; ``KeyError`` if one is unknown or cannot be asked."""
        form = self.judge_form(judge, judge_model)
        if form is None:
            raise KeyError(judge)
        return form.version

    def versions(self, judge: str) -> frozenset[str]:
        """Return all versions of a judge: its own, and those for the judge models of the configuration."""
        names = ("", *(grader.judge_model for grader in self._named.values()))
        return frozenset(form.version for name in names if (form := self.judge_form(judge, name)) is not None)

    def _form(self, name: str, judge_model: str) -> Judge | None:
        judge = self._judges.get(name, GROUNDED_AND_RELEVANT if name == GROUNDED_AND_RELEVANT.name else None)
        if judge is None:
            return None
        if (together := self.panels.get(judge_model)) is not None:
            names = JUDGE_PAIR if judge is GROUNDED_AND_RELEVANT else (judge.name,)
            members = [self.judge_form(name, member) for name in names for member in together.members]
            return judge_of_panel(judge, [member for member in members if member is not None])
        model = next((each for each in self._settings.models.values() if each.judge_model == judge_model), None)
        if model is None:
            return judge
        try:
            return calibrate_judge(self._settings, judge, model)
        except ValueError:
            return None

    def find_grader(self, name: str, judge_model: str) -> Grader | None:
        """Return the grader that a batch names; None if the configuration has no such grader."""
        named = self._named.get(name)
        return named if named is not None and named.judge_model == judge_model else None

    def has_grader(self, name: str) -> bool:
        """Return whether there is a grader with this name."""
        return name in self._named

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the configured models."""
        return tuple(self._models)

    def grader(self, name: str) -> Grader:
        """Return the grader with this name."""
        return self._named[name]


def _find_panel(settings: Settings, rule: Rule) -> Grader | None:
    combine = COMBINE.read(rule)
    return combine and make_panel(combine, [settings.models[name].judge_model for name in rule.models])


def find_providers(settings: Settings) -> dict[str, str]:
    """Return the provider of each judge model: `code` for judges in code, the members' for a panel if all share it."""
    of_models: dict[str, str] = {model.judge_model: model.provider for model in settings.models.values()}
    panels = (grader for rule in settings.rules if (grader := _find_panel(settings, rule)) is not None)
    members = {grader.judge_model: {of_models[member] for member in grader.members} for grader in panels}
    # Panels of several providers are left out, because no single name is true of them.
    alike = {name: used.pop() for name, used in members.items() if len(used) == 1}
    return {**of_models, **alike, CODE_MODEL: CODE_MODEL}
