"""Sampling: which judges evaluate which traces, and the ids of the evaluations.

One number per trace decides for all rules and all workers alike. A trace that matches a rule with `egress` is sent only
to the models named there: another rule, one of whose models is not among them, does not choose the trace for its
models. Judges in code send nothing, so `egress` does not concern them.
"""

import fnmatch
import hashlib
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import structlog
from msgspec import structs

from judges.core.combine import JOINT, PARTS
from judges.core.judge import has_text
from judges.core.verdict import Origin, joined_parts, session_parts
from judges.parsing.retrievals import has_context
from tracejudge import Trace
from worker.core.config.graders import CODE, Grader, Graders
from worker.core.config.settings import Rule, Settings
from worker.core.queue.batch import Evaluation, Member, Session
from worker.core.selection.stream_entry import TraceEntry

log = structlog.get_logger("tracejudge.sampling")
_DIGITS: Final = 53
_PLACES: Final = 2.0**_DIGITS
_PATTERNED: Final = ("service", "environment", "name", "release", "model")
_MAX_CACHED: Final = 4_096
_MAX_CACHED_CHARS: Final = 1_000
_MAX_SEGMENT_CHARS: Final = 100
_NEW_LABELS: Final = ("service", "model", "release")
# Further new values of an hour choose no trace by themselves: names without end must not fill the memory.
_MAX_NEW: Final = 1_000


class Choice(NamedTuple):
    """One evaluation that a trace was chosen for: the judge, the grader's name, and the probability."""

    judge: str
    model: str
    probability: float


class RuleTally(NamedTuple):
    """A rule that matched a trace, and whether it chose the trace."""

    rule: str
    chosen: bool


class Sampling(NamedTuple):
    """The outcome of sampling one trace; without matching rules all are empty.

    ``of_session`` are the evaluations of its conversation that it is gathered for.
    """

    choices: tuple[Choice, ...]
    rules: tuple[RuleTally, ...]
    of_session: tuple[Choice, ...] = ()


class _CompiledRule(NamedTuple):
    """A rule, and the evaluations that it asks for: judges with the names of graders."""

    rule: Rule
    evaluations: tuple[tuple[str, str], ...]


class _Matching(NamedTuple):
    """Rules that match the same traces, and the facts that quickly exclude that any of them chooses.

    Attributes:
        rules: Without evaluations by models that another rule's egress excludes.
        allowed: The names of models that every egress allows; None where any model is allowed.
        highest_rate: Of all rules that choose by trace.
        session_rate: The highest rate of all rules that choose by session.
        errors: Whether a rule always chooses traces with an error.
        feedback: Whether a rule always chooses traces with negative feedback.
        slow_s: From how many seconds on a rule always chooses a trace.
        not_chosen: The outcome for traces that no rule chooses.
        context_tools: Of all rules.
        segments: The rules that divide their rate, with the segment that these traces belong to.
        new: The rules that choose the first traces of a new value, with the value and how many an hour.
    """

    rules: tuple[_CompiledRule, ...]
    allowed: frozenset[str] | None
    highest_rate: float
    session_rate: float
    errors: bool
    feedback: bool
    slow_s: float
    not_chosen: Sampling
    context_tools: tuple[str, ...]
    segments: tuple[tuple[str, str], ...] = ()
    new: tuple[tuple[tuple[str, str], int], ...] = ()


def position(trace_id: str, sampling_key: str) -> float:
    """Return the trace's position in 0..1, a keyed hash of its id.

    A rate chooses the traces below it, so a lower rate chooses a subset of a higher one, and all workers choose alike.
    """
    return _position(trace_id, hashlib.blake2b(digest_size=8, key=sampling_key.encode()))


class Sampler:
    """The compiled rules of the settings; threads may share it.

    Attributes:
        graders: The graders that the rules name.
    """

    def __init__(self, settings: Settings, graders: Graders) -> None:
        """Compile the rules' patterns."""
        self.graders = graders
        self._keyed = hashlib.blake2b(digest_size=8, key=settings.sampling_key.encode())
        compiled = [_CompiledRule(rule, self.graders.evaluations(rule)) for rule in settings.rules]
        # The rates of the settings, whatever factors reduce them.
        self._full = tuple((one, _matcher(one.rule)) for one in compiled)
        self._rules = self._full
        self._of_segments: Mapping[str, Mapping[str, float]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._known: frozenset[str] = frozenset()
        # Traces of this hour, as far as rules choose them: of all workers until the last exchange and our own, and our
        # own since then.
        self._of_hour: Counter[tuple[str, str]] = Counter()
        self._not_exchanged: Counter[tuple[str, str]] = Counter()
        wheres = [rule.where for rule in settings.rules]
        dividing: set[str] = {label for rule in settings.rules for label in rule.stratify}
        if any(rule.first_per_hour for rule in settings.rules):
            dividing.update(_NEW_LABELS)
        patterned = [
            name for name in _PATTERNED if name in dividing or any(getattr(where, name) is not None for where in wheres)
        ]
        # The getter needs one field at least.
        self._names = attrgetter(*(patterned or ["service"]))
        # Whether a field has text decides about matching, its text does not, so that few keys are cached.
        self._contents = sorted({_content(rule, name) for rule in settings.rules for name in _needed(rule)})
        self._cache: dict[object, _Matching] = {}
        self._reported: set[tuple[str, str]] = set()
        self._judge_models = {name: model.judge_model for name, model in settings.models.items()}

    def sample(self, trace: Trace) -> Sampling:
        """Choose evaluations for a trace.

        Rules that want the same judge and model share one evaluation; its probability is the largest of theirs. Rules
        that choose by trace and by session choose independently of each other, and either one is enough.
        """
        matching = self._matching(trace)
        if not matching.rules:
            return matching.not_chosen
        for segment in matching.segments:
            self._counts[segment] += 1
        place = _position(trace.trace_id, self._keyed)
        of_session = 1.0
        if matching.session_rate:
            # A trace without a session is one by itself.
            of_session = _position(trace.session_id, self._keyed) if trace.session_id else place
        first = self._first(matching.new) if matching.new else ()
        always = (
            (matching.errors and trace.error)
            or (matching.feedback and trace.feedback is not None)
            or (matching.slow_s < math.inf and _duration_s(trace) >= matching.slow_s)
            or first
        )
        if place >= matching.highest_rate and of_session >= matching.session_rate and not always:
            return matching.not_chosen
        best: dict[tuple[str, str], float] = {}
        by_session: dict[tuple[str, str], float] = {}
        gathered: dict[tuple[str, str], float] = {}
        tallies = []
        for rule, evaluations in matching.rules:
            chooses = rule.name in first or (rule.always and is_always(rule, trace))
            # Without evaluations that its egress allows, a rule chooses nothing.
            probability = (1.0 if chooses else rule.rate) if evaluations else 0.0
            is_by_session = _is_by_session(rule)
            at = of_session if is_by_session else place
            found = gathered if rule.unit == "session" else by_session if is_by_session else best
            tallies.append(RuleTally(rule.name, at < probability))
            for one in evaluations:
                found[one] = max(found.get(one, 0.0), probability)
        choices = [Choice(*one, probability) for one, probability in best.items() if place < probability]
        if by_session:
            choices = _either(best, by_session, place, of_session)
        of_all = (Choice(*one, probability) for one, probability in gathered.items() if of_session < probability)
        return Sampling(tuple(choices), tuple(tallies), tuple(of_all))

    def probabilities(self, trace: Trace) -> Sampling:
        """Return every evaluation that the rules may choose, with its probability; nothing is drawn or counted.

        Traces that are chosen for a new value are left out: which ones these are, depends on all others of their hour.
        """
        matching = self._matching(trace)
        best: dict[tuple[str, str], float] = {}
        by_session: dict[tuple[str, str], float] = {}
        gathered: dict[tuple[str, str], float] = {}
        for rule, evaluations in matching.rules:
            probability = 1.0 if rule.always and is_always(rule, trace) else rule.rate
            found = gathered if rule.unit == "session" else by_session if _is_by_session(rule) else best
            for one in evaluations if probability else ():
                found[one] = max(found.get(one, 0.0), probability)
        # Below all positions, and different where those of the trace and of its session are independent.
        choices = _either(best, by_session, -1.0, -2.0 if trace.session_id else -1.0)
        return Sampling(tuple(choices), (), tuple(Choice(*one, probability) for one, probability in gathered.items()))

    def set_factors(self, factors: Mapping[str, float], of_segments: Mapping[str, Mapping[str, float]]) -> None:
        """Multiply the rates of rules by factors, by the rules' names and segments; all others have their full rates.

        A trace has the rate of the factors that were set before it was read.
        """

        def reduced(rule: Rule) -> Rule:
            return structs.replace(rule, rate=rule.rate * factors.get(rule.name, 1.0))

        self._rules = tuple((one._replace(rule=reduced(one.rule)), matches) for one, matches in self._full)
        self._of_segments = of_segments
        # Replaced, not cleared: a thread that combines former rules must not add them to the new ones.
        self._cache = {}

    def take_first(self) -> Counter[tuple[str, str]]:
        """Return the traces of new values since the last call, by rule and value; for the thread that samples."""
        counts, self._not_exchanged = self._not_exchanged, Counter()
        return counts

    def set_first(self, of_hour: Counter[tuple[str, str]], known: frozenset[str]) -> None:
        """Set how many traces new values had in this hour, and which values are not new."""
        self._of_hour = of_hour
        if known != self._known:
            self._known = known
            self._cache = {}

    def take_counts(self) -> Counter[tuple[str, str]]:
        """Return how many traces were sampled by rule and segment since the last call; for the thread that samples."""
        counts, self._counts = self._counts, Counter()
        return counts

    def asking(self, trace: Trace, judge: str, judge_model: str | None) -> list[Rule]:
        """Return the rules, with their full rates, that match a trace and ask a judge model, by default any of them."""
        found = []
        for (rule, evaluations), matches in self._full:
            of_judge = [self.graders.named(name).judge_model for one, name in evaluations if one == judge]
            if of_judge and (judge_model is None or judge_model in of_judge) and matches(trace):
                found.append(rule)
        return found

    def allows(self, trace: Trace, judge_model: str) -> bool:
        """Return whether the rules allow a trace to be sent to a judge model.

        Names of models that share a judge model share its endpoint. A panel needs the verdicts of all its members.
        """
        allowed = self._matching(trace).allowed
        if allowed is None or judge_model == CODE.judge_model:
            return True
        panel, known = self.graders.panels.get(judge_model), {self._judge_models.get(name) for name in allowed}
        return judge_model in known if panel is None else known.issuperset(panel.members)

    def context_tools(self, trace: Trace) -> tuple[str, ...]:
        """Return the tools whose results are the context of a trace without one, by all rules that match it."""
        return self._matching(trace).context_tools

    @property
    def judges_negative_feedback(self) -> bool:
        """Whether any rule always chooses traces with negative feedback."""
        return any("negative_feedback" in compiled.rule.always for compiled, _ in self._rules)

    def sample_late_feedback(self, trace: Trace) -> tuple[Choice, ...]:
        """Choose evaluations for a trace with late negative feedback.

        Only rules that always judge negative feedback choose here; the others have chosen when the trace came.
        """
        rules = (one for one in self._matching(trace).rules if "negative_feedback" in one.rule.always)
        evaluations = dict.fromkeys(evaluation for one in rules for evaluation in one.evaluations)
        return tuple(Choice(judge, grader, 1.0) for judge, grader in evaluations)

    def _matching(self, trace: Trace) -> _Matching:
        """Find the matching rules; they are the same for all traces with the same names and kinds of content."""
        names = self._names(trace)
        key = (names, *[_has(trace, *content) for content in self._contents]) if self._contents else names
        cache = self._cache
        cached = cache.get(key)
        if cached is not None:
            return cached
        rules = [compiled for compiled, matches in self._rules if matches(trace)]
        segments = {}
        for rule in (one.rule for one in rules if one.rule.stratify):
            # The values of the rule's labels, which may be long, in one text; Redis and JSON take no lone surrogates.
            text = "\n".join((getattr(trace, label) or "")[:_MAX_SEGMENT_CHARS] for label in rule.stratify)
            segments[rule.name] = text.encode("utf-8", "replace").decode()
        for place, one in enumerate(rules):
            # A segment that is not known yet has the mean rate.
            factor = self._of_segments.get(one.rule.name, {}).get(segments.get(one.rule.name, ""), 1.0)
            if factor != 1.0:
                rules[place] = one._replace(rule=structs.replace(one.rule, rate=min(1.0, one.rule.rate * factor)))
        # The values that may be new: the service, and the model and release within it.
        names = (trace.service, *(f"{trace.service}\n{part}={getattr(trace, part)}" for part in ("model", "release")))
        values = [name[:_MAX_SEGMENT_CHARS].encode("utf-8", "replace").decode() for name in names]
        new = tuple(
            ((one.rule.name, value), one.rule.first_per_hour)
            for one in rules
            if one.rule.first_per_hour
            for value in values
            if value not in self._known
        )
        matching = self._combine(rules)._replace(segments=tuple(segments.items()), new=new)
        self._report_egress(rules)
        if sum(len(getattr(trace, name) or "") for name in _PATTERNED) <= _MAX_CACHED_CHARS:
            if len(cache) >= _MAX_CACHED:
                # Names without end; those that occur often are cached again at once.
                cache.clear()
            cache[key] = matching
        return matching

    def _first(self, new: Sequence[tuple[tuple[str, str], int]]) -> set[str]:
        """Count a trace for its new values; return the rules that choose it as one of the first."""
        found, of_hour = set(), self._of_hour
        for value, most in new:
            count = of_hour.get(value, 0)
            # Beyond that many the count changes nothing.
            if count < most and (count or len(of_hour) < _MAX_NEW):
                found.add(value[0])
                of_hour[value] = count + 1
                self._not_exchanged[value] += 1
        return found

    def _report_egress(self, rules: Sequence[_CompiledRule]) -> None:
        """Log once for each pair of rules that the egress of one excludes the other's model."""
        sending = [one for one in rules if any(grader != CODE.name for _, grader in one.evaluations)]
        keeping = [one.rule for one in rules if one.rule.egress is not None]
        for rule, evaluations in sending:
            models = {name for judge, grader in evaluations for name in self._models(rule, judge, grader)}
            for other in keeping:
                pair = (rule.name, other.name)
                if pair not in self._reported and not models.issubset(other.egress or ()):
                    self._reported.add(pair)
                    log.warning("egress excludes another rule's model", rule=other.name, other=rule.name)

    def _models(self, rule: Rule, judge: str, grader: str) -> tuple[str, ...]:
        """Name the models that get a trace for an evaluation; with one member barred, no member of a panel is asked."""
        return () if grader == CODE.name else self.graders.models_of(rule, judge)

    def _combine(self, rules: Sequence[_CompiledRule]) -> _Matching:
        """Apply the egress of all rules that match the same traces."""
        egresses = [frozenset(one.rule.egress) for one in rules if one.rule.egress is not None]
        allowed = frozenset.intersection(*egresses) if egresses else None
        kept = tuple(
            one
            if allowed is None
            else one._replace(
                evaluations=tuple(each for each in one.evaluations if allowed.issuperset(self._models(one.rule, *each)))
            )
            for one in rules
        )
        choosing = [one.rule for one in kept if one.evaluations]
        return _Matching(
            rules=kept,
            allowed=allowed,
            highest_rate=max((rule.rate for rule in choosing if not _is_by_session(rule)), default=0.0),
            session_rate=max((rule.rate for rule in choosing if _is_by_session(rule)), default=0.0),
            errors=any("error" in rule.always for rule in choosing),
            feedback=any("negative_feedback" in rule.always for rule in choosing),
            slow_s=min((rule.slow_s for rule in choosing if "slow" in rule.always), default=math.inf),
            not_chosen=Sampling((), tuple(RuleTally(one.rule.name, chosen=False) for one in rules)),
            context_tools=tuple(dict.fromkeys(tool for one in rules for tool in one.rule.context_tools)),
        )


def _position(trace_id: str, keyed: "hashlib.blake2b") -> float:
    # Copying the keyed state takes a third less time than keying anew.
    digest = keyed.copy()
    digest.update(trace_id.encode("utf-8", "surrogatepass"))
    # As many digits as a float holds: rounded, the last positions would become 1, which not even a rate of 1 chooses.
    return (int.from_bytes(digest.digest(), "big") >> (64 - _DIGITS)) / _PLACES


def is_always(rule: Rule, trace: Trace) -> bool:
    """Return whether a rule chooses a trace for its error, negative feedback or duration, whatever the rate."""
    return (
        ("error" in rule.always and bool(trace.error))
        or ("negative_feedback" in rule.always and trace.feedback is not None and trace.feedback.score < 0)
        or ("slow" in rule.always and _duration_s(trace) >= rule.slow_s)
    )


def _is_by_session(rule: Rule) -> bool:
    return "session" in {rule.unit, rule.sample_by}


def _duration_s(trace: Trace) -> float:
    """Return the duration of a trace, 0 where it is unknown."""
    if trace.started_at is None or trace.ended_at is None:
        return 0.0
    return trace.ended_at - trace.started_at


def _either(
    best: Mapping[tuple[str, str], float], by_session: Mapping[tuple[str, str], float], place: float, of_session: float
) -> list[Choice]:
    """Return what is chosen by trace or by session, with the probability that either chooses it."""
    choices = []
    for one in dict.fromkeys((*best, *by_session)):
        of_trace, of_whole = best.get(one, 0.0), by_session.get(one, 0.0)
        if place < of_trace or of_session < of_whole:
            # Positions of different ids are independent; without a session both are the same.
            is_alone = place == of_session or not of_trace or not of_whole
            probability = max(of_trace, of_whole) if is_alone else of_trace + of_whole - of_trace * of_whole
            choices.append(Choice(*one, probability))
    return choices


def _content(rule: Rule, name: str) -> tuple[str, tuple[str, ...]]:
    """Return a field that a rule requires, and the tools that may stand for it."""
    return name, rule.context_tools if name == "context" else ()


def _has(trace: Trace, name: str, tools: tuple[str, ...]) -> bool:
    """Return whether a field has text; retrieval spans and results of tools stand for an absent context."""
    return has_context(trace, tools) if name == "context" else has_text(getattr(trace, name))


def _needed(rule: Rule) -> tuple[str, ...]:
    """Name the fields without which a trace does not match a rule."""
    return (*rule.where.has, "session_id") if rule.unit == "session" else rule.where.has


def _matcher(rule: Rule) -> Callable[[Trace], bool]:
    """Build the test of one rule from the fields that it names."""
    where, contents = rule.where, [_content(rule, name) for name in _needed(rule)]
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


_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400
_FIRST_S: Final = 946_684_800
_LAST_S: Final = 4_102_444_800
"""The years from 2000 to 2100."""


class Chosen(NamedTuple):
    """One chosen evaluation, and its grader."""

    grader: Grader
    evaluation: Evaluation


def not_shed(chosen: Sequence[Chosen], shed: Collection[str]) -> tuple[list[Chosen], Counter[str]]:
    """Return the evaluations whose judge models are not shed, and the number of the others by judge model."""
    # A panel is shed with any of its members, since it would wait for their verdicts.
    away = [next((name for name in (one.judge_model, *one.members) if name in shed), None) for one, _ in chosen]
    kept = [one for one, judge_model in zip(chosen, away, strict=True) if judge_model is None]
    return kept, Counter(name for name in away if name is not None)


class _Template(NamedTuple):
    """The common part of all evaluations by one judge and one grader.

    Attributes:
        suffix: Of the hashed text that makes the id, behind the trace.
        members: The judge models of the evaluations that are combined, each with its suffix.
    """

    grader: Grader
    version: str
    keep: bool
    suffix: bytes
    members: tuple[tuple[str, bytes], ...]


class EvaluationFactory:
    """Makes evaluations. Their ids depend on trace, judge, version and judge model alone, whatever their origin."""

    def __init__(self, graders: Graders) -> None:
        """Keep the graders, which know the version of each judge for each model."""
        self._graders = graders
        self._templates: dict[tuple[str, str], _Template] = {}

    def evaluations(self, entry: TraceEntry, choices: Sequence[Choice], origin: Origin) -> list[Chosen]:
        """Make all evaluations that are chosen for a trace."""
        prefix = publication_parts(entry)
        return self._made(prefix, period_of(entry), choices, origin)

    def of_session(self, trace: Trace, choices: Sequence[Choice], origin: Origin, session: Session) -> list[Chosen]:
        """Make the evaluations of a conversation; ``trace`` is any of its traces."""
        # Periods of days: a conversation that is gathered anew on another day is found there (scripts/ledger.lua).
        period = f"d{int(time.time()) // _DAY_S}"
        return self._made(session_parts(trace, session.generation), period, choices, origin, session)

    def _made(
        self, prefix: bytes, period: str, choices: Sequence[Choice], origin: Origin, session: Session | None = None
    ) -> list[Chosen]:
        made = []
        for judge, name, probability in choices:
            template = self._templates.get((judge, name))
            if template is None:
                grader = self._graders.named(name)
                version = self._graders.version(judge, grader.judge_model)
                # Kept for a panel whether it is chosen now or not: late feedback or a replay may choose it later.
                keep = (judge, grader.judge_model) in self._graders.combined
                suffix = joined_parts(judge, version, grader.judge_model, "0")
                of_members = tuple(
                    (member, joined_parts(part, self._graders.version(part, member), member, "0"))
                    for part in (PARTS if judge == JOINT.name else (judge,))
                    for member in grader.members
                )
                template = _Template(grader, version, keep, suffix, of_members)
                self._templates[judge, name] = template
            grader, version, keep, suffix, suffixes = template
            members = tuple([Member(judge_model, _id(prefix, end)) for judge_model, end in suffixes])
            evaluation_id = _id(prefix, suffix)
            evaluation = Evaluation(evaluation_id, period, judge, version, probability, origin, keep, members, session)
            made.append(Chosen(grader, evaluation))
        return made


def period_of(entry: TraceEntry) -> str:
    """Return the period of the ledger that holds the evaluations of a trace: an hour, or the day of arrival."""
    for time_s in (entry.trace.ended_at, entry.trace.started_at):
        if time_s is not None and _FIRST_S <= time_s < _LAST_S:
            return str(int(time_s) // _HOUR_S)
    return f"d{int(entry.entry_id.split('-', 1)[0]) // (_DAY_S * 1000)}"


def publication_parts(entry: TraceEntry) -> bytes:
    """Encode the identity of one publication of a trace."""
    return joined_parts(entry.trace.trace_id, entry.trace.span_id or "", entry.publication_id)


def _id(prefix: bytes, suffix: bytes) -> str:
    return hashlib.blake2b(prefix + suffix, digest_size=16).hexdigest()
