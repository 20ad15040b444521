"""Sampling: which judges evaluate which traces, with which probability.

One number per trace decides for all rules and all workers alike. A trace that matches a rule with `egress` is sent only
to the models named there: another rule, one of whose models is not among them, does not choose the trace for its
models. Judges in code send nothing, so `egress` does not concern them.
"""

import fnmatch
import hashlib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

import structlog

from judges.core.judge import has_text
from judges.parsing.retrievals import has_context
from tracejudge import Trace
from worker.core.config.graders import CODE, Graders, JudgeGrader
from worker.core.config.settings import Rule, Settings
from worker.core.features import IngestHook, find_overrides

log = structlog.get_logger("tracejudge.sampling")
T = TypeVar("T")
_DIGITS: Final = 53
_PLACES: Final = 2.0**_DIGITS
_PATTERNED: Final = ("service", "environment", "name", "release", "model")
_MAX_CACHED: Final = 4_096
_MAX_CACHED_CHARS: Final = 1_000


class Choice(NamedTuple):
    """One evaluation that a trace was chosen for: the judge, the grader's name, and the probability."""

    judge: str
    grader: str
    probability: float


class RuleTally(NamedTuple):
    """A rule that matched a trace, and whether it chose the trace."""

    rule: str
    chosen: bool


class Sampling(NamedTuple):
    """The outcome of sampling one trace, empty without matching rules; ``session_choices`` are of its conversation."""

    choices: tuple[Choice, ...]
    rules: tuple[RuleTally, ...]
    session_choices: tuple[Choice, ...] = ()


class CompiledRule(NamedTuple):
    """A rule, and the evaluations that it asks for."""

    rule: Rule
    evaluations: tuple[JudgeGrader, ...]


class MatchingRules(NamedTuple):
    """The rules that match a trace."""

    rules: tuple[CompiledRule, ...]  # Without evaluations by models that another rule's egress excludes.
    allowed: frozenset[str] | None  # The names of models that every egress allows; None if any model is allowed.
    context_tools: tuple[str, ...]  # The tools whose results are the context of a trace without one, by all rules.


class _Matching(NamedTuple):
    """Rules that match the same traces, and the facts that quickly exclude that any of them chooses."""

    rules: Sequence[CompiledRule]  # The rules, with the rates that hooks have adjusted.
    highest_rate: float  # Of all rules that choose by trace.
    session_rate: float  # The highest rate of all rules that choose by session.
    errors: bool  # Whether a rule always chooses traces with an error.
    feedback: bool  # Whether a rule always chooses traces with negative feedback.
    slow_s: float  # The duration from which a rule always chooses a trace.
    not_chosen: Sampling  # The outcome for traces that no rule chooses.
    # Called for each of the traces; they name rules that choose the trace at any rate.
    choosers: Sequence[Callable[[], Collection[str]]]


def position(trace_id: str, sampling_key: str) -> float:
    """Return the trace's position in 0..1, a keyed hash of its id."""
    # A rate chooses the traces below it, so a lower rate chooses a subset of a higher one, and all workers choose
    # alike.
    return _position(trace_id, hashlib.blake2b(digest_size=8, key=sampling_key.encode()))


class Rules:
    """The compiled rules of a configuration, with their full rates; one for a process, threads may share it."""

    def __init__(self, settings: Settings, graders: Graders) -> None:
        """Compile the rules' patterns."""
        self.graders = graders  # The graders that the rules name.
        self.sampling_key = settings.sampling_key  # The key of the positions of traces.
        self._compiled = [(CompiledRule(rule, graders.evaluations(rule)), _matcher(rule)) for rule in settings.rules]
        self._names = {name for rule in settings.rules for name in _PATTERNED if getattr(rule.where, name) is not None}
        # Cache keys hold whether a field has text, and not the text, so there are few keys.
        self._contents = sorted({_content(rule, name) for rule in settings.rules for name in _required_fields(rule)})
        self._reported: set[tuple[str, str]] = set()
        self._judge_models = {name: model.judge_model for name, model in settings.models.items()}
        self.matching = self.cache(self._match)  # Returns the rules that match a trace.

    def cache(self, function: Callable[[Trace], T], fields: Collection[str] = ()) -> Callable[[Trace], T]:
        """Cache a function of the rules that match a trace, and of the fields of the trace that ``fields`` name."""
        names = [name for name in _PATTERNED if name in self._names or name in fields]
        # The getter needs one field at least.
        names_of, contents = attrgetter(*(names or ["service"])), self._contents
        cache: dict[object, T] = {}

        def find(trace: Trace) -> T:
            key = (names_of(trace), *[_has(trace, *content) for content in contents]) if contents else names_of(trace)
            cached = cache.get(key)
            if cached is not None:
                return cached
            made = function(trace)
            if sum(len(getattr(trace, name) or "") for name in _PATTERNED) <= _MAX_CACHED_CHARS:
                if len(cache) >= _MAX_CACHED:
                    # Some service makes a new name for each trace. Frequent keys are soon cached again.
                    cache.clear()
                cache[key] = made
            return made

        return find

    def find_rules(self, trace: Trace, judge: str, judge_model: str | None) -> list[Rule]:
        """Return the rules that match a trace and ask a judge model, by default any of them."""
        found = []
        for (rule, evaluations), matches in self._compiled:
            of_judge = [self.graders.grader(grader).judge_model for name, grader in evaluations if name == judge]
            if of_judge and (judge_model is None or judge_model in of_judge) and matches(trace):
                found.append(rule)
        return found

    def allows(self, trace: Trace, judge_model: str) -> bool:
        """Return whether the rules allow a trace to be sent to a judge model."""
        # Names of models that share a judge model share its endpoint. A panel needs the verdicts of all its members.
        allowed = self.matching(trace).allowed
        if allowed is None or judge_model == CODE.judge_model:
            return True
        panel, models = self.graders.panels.get(judge_model), {self._judge_models.get(name) for name in allowed}
        return judge_model in models if panel is None else models.issuperset(panel.members)

    def _match(self, trace: Trace) -> MatchingRules:
        """Find the rules that match a trace, and apply the egress of all of them."""
        rules = [compiled for compiled, matches in self._compiled if matches(trace)]
        self._report_egress(rules)
        egresses = [frozenset(match.rule.egress) for match in rules if match.rule.egress is not None]
        tools = tuple(dict.fromkeys(tool for match in rules for tool in match.rule.context_tools))
        if not egresses:
            return MatchingRules(tuple(rules), None, tools)
        allowed = frozenset.intersection(*egresses)

        def keep(compiled: CompiledRule) -> CompiledRule:
            kept = [pair for pair in compiled.evaluations if allowed.issuperset(self._models(compiled.rule, *pair))]
            return compiled._replace(evaluations=tuple(kept))

        return MatchingRules(tuple(map(keep, rules)), allowed, tools)

    def _report_egress(self, rules: Sequence[CompiledRule]) -> None:
        """Log once for each pair of rules that the egress of one excludes the other's model."""
        sending = [match for match in rules if any(grader != CODE.name for _, grader in match.evaluations)]
        keeping = [match.rule for match in rules if match.rule.egress is not None]
        for rule, evaluations in sending:
            models = {name for judge, grader in evaluations for name in self._models(rule, judge, grader)}
            for limiting in keeping:
                pair = (rule.name, limiting.name)
                if pair not in self._reported and not models.issubset(limiting.egress or ()):
                    self._reported.add(pair)
                    log.warning("egress excludes another rule's model", rule=limiting.name, other=rule.name)

    def _models(self, rule: Rule, judge: str, grader: str) -> tuple[str, ...]:
        """Name the models that get a trace for an evaluation; with one member barred, no member of a panel is asked."""
        return () if grader == CODE.name else self.graders.models_of(rule, judge)


class Sampler:
    """Chooses evaluations of traces, with the rates that the hooks of one ingest thread adjust."""

    def __init__(self, rules: Rules, hooks: Sequence[IngestHook] = ()) -> None:
        """Sample by the rules; without hooks by their full rates."""
        self.rules = rules
        self._keyed = hashlib.blake2b(digest_size=8, key=rules.sampling_key.encode())
        self._fields = frozenset(field for selector in hooks for field in selector.fields)
        self._adjusts = find_overrides(hooks, "adjust")
        self.clear()

    def clear(self) -> None:
        """Forget the adjusted rates, so that hooks adjust them anew."""
        self._matching = self.rules.cache(self._combine, self._fields)

    def sample(self, trace: Trace) -> Sampling:
        """Choose evaluations for a trace."""
        # Rules that want the same judge and model share one evaluation; its probability is the largest of theirs. Rules
        # that choose by trace and by session choose independently of each other, and either one is enough.
        matching = self._matching(trace)
        if not matching.rules:
            return matching.not_chosen
        chosen_by_hooks = [name for choose in matching.choosers for name in choose()] if matching.choosers else ()
        trace_position, session_position = _position(trace.trace_id, self._keyed), 1.0
        if matching.session_rate:
            # A trace without a session is a session by itself.
            session_position = _position(trace.session_id, self._keyed) if trace.session_id else trace_position
        always = (
            (matching.errors and trace.error)
            or (matching.feedback and trace.feedback is not None)
            or (matching.slow_s < math.inf and _duration_s(trace) >= matching.slow_s)
            or chosen_by_hooks
        )
        if trace_position >= matching.highest_rate and session_position >= matching.session_rate and not always:
            return matching.not_chosen
        by_trace: dict[JudgeGrader, float] = {}
        by_session: dict[JudgeGrader, float] = {}
        gathered: dict[JudgeGrader, float] = {}
        tallies = []
        for rule, evaluations in matching.rules:
            chooses = rule.name in chosen_by_hooks or (rule.always and is_always(rule, trace))
            # Without evaluations that its egress allows, a rule chooses nothing.
            probability = (1.0 if chooses else rule.rate) if evaluations else 0.0
            is_session = is_by_session(rule)
            highest = gathered if rule.unit == "session" else by_session if is_session else by_trace
            tallies.append(RuleTally(rule.name, (session_position if is_session else trace_position) < probability))
            for pair in evaluations:
                highest[pair] = max(highest.get(pair, 0.0), probability)
        choices = [Choice(*pair, probability) for pair, probability in by_trace.items() if trace_position < probability]
        if by_session:
            choices = choose_either(by_trace, by_session, trace_position, session_position)
        session_choices = [
            Choice(*pair, probability) for pair, probability in gathered.items() if session_position < probability
        ]
        return Sampling(tuple(choices), tuple(tallies), tuple(session_choices))

    def _combine(self, trace: Trace) -> _Matching:
        """Adjust the rates of the rules that match a trace; they are the same for all traces with the same key."""
        matching = self.rules.matching(trace)
        rules: Sequence[CompiledRule] = matching.rules
        choosers: list[Callable[[], Collection[str]]] = []
        for adjust in self._adjusts:
            rules, choose = adjust(rules, trace)
            choosers += [] if choose is None else [choose]
        choosing = [match.rule for match in rules if match.evaluations]
        return _Matching(
            rules=rules,
            highest_rate=max((rule.rate for rule in choosing if not is_by_session(rule)), default=0.0),
            session_rate=max((rule.rate for rule in choosing if is_by_session(rule)), default=0.0),
            errors=any("error" in rule.always for rule in choosing),
            feedback=any("negative_feedback" in rule.always for rule in choosing),
            slow_s=min((rule.slow_s for rule in choosing if "slow" in rule.always), default=math.inf),
            not_chosen=Sampling((), tuple(RuleTally(match.rule.name, chosen=False) for match in rules)),
            choosers=choosers,
        )


def _position(trace_id: str, keyed: "hashlib.blake2b") -> float:
    # Copying the keyed state takes a third less time than keying anew.
    digest = keyed.copy()
    digest.update(trace_id.encode("utf-8", "surrogatepass"))
    # A float holds no more digits: rounding would make the last positions 1, which not even a rate of 1 chooses.
    return (int.from_bytes(digest.digest(), "big") >> (64 - _DIGITS)) / _PLACES


def is_always(rule: Rule, trace: Trace) -> bool:
    """Return whether a rule chooses a trace at any rate, for its error, negative feedback or duration."""
    return (
        ("error" in rule.always and bool(trace.error))
        or ("negative_feedback" in rule.always and trace.feedback is not None and trace.feedback.score < 0)
        or ("slow" in rule.always and _duration_s(trace) >= rule.slow_s)
    )


def is_by_session(rule: Rule) -> bool:
    """Return whether a rule chooses whole sessions."""
    return "session" in {rule.unit, rule.sample_by}


def _duration_s(trace: Trace) -> float:
    if trace.started_at is None or trace.ended_at is None:
        return 0.0
    return trace.ended_at - trace.started_at


def choose_either(
    by_trace: Mapping[JudgeGrader, float],
    by_session: Mapping[JudgeGrader, float],
    trace_position: float,
    session_position: float,
) -> list[Choice]:
    """Choose evaluations by trace or by session, with the probability that either chooses them."""
    choices = []
    for pair in dict.fromkeys((*by_trace, *by_session)):
        trace_rate, session_rate = by_trace.get(pair, 0.0), by_session.get(pair, 0.0)
        if trace_position < trace_rate or session_position < session_rate:
            # Positions of different ids are independent; without a session both are the same.
            is_alone = trace_position == session_position or not trace_rate or not session_rate
            both = trace_rate * session_rate
            probability = max(trace_rate, session_rate) if is_alone else trace_rate + session_rate - both
            choices.append(Choice(*pair, probability))
    return choices


def _content(rule: Rule, name: str) -> tuple[str, tuple[str, ...]]:
    """Return a field that a rule requires, and the tools that may replace it."""
    return name, rule.context_tools if name == "context" else ()


def _has(trace: Trace, name: str, tools: tuple[str, ...]) -> bool:
    """Return whether a field has text; retrieval spans and results of tools replace an absent context."""
    return has_context(trace, tools) if name == "context" else has_text(getattr(trace, name))


def _required_fields(rule: Rule) -> tuple[str, ...]:
    return (*rule.where.has, "session_id") if rule.unit == "session" else rule.where.has


def _matcher(rule: Rule) -> Callable[[Trace], bool]:
    where, contents = rule.where, [_content(rule, name) for name in _required_fields(rule)]
    patterns = [(name, getattr(where, name)) for name in _PATTERNED if getattr(where, name) is not None]
    compiled: Sequence[tuple[str, re.Pattern[str]]] = [
        (name, re.compile(fnmatch.translate(pattern))) for name, pattern in patterns
    ]

    def matches(trace: Trace) -> bool:
        for name, pattern in compiled:
            if pattern.match(getattr(trace, name) or "") is None:
                return False
        return all(_has(trace, *content) for content in contents)

    return matches
