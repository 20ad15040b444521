"""Evaluations: their ids, periods and members."""

import base64
import hashlib
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from judges.core.combine import GROUNDED_AND_RELEVANT, JUDGE_PAIR
from judges.core.verdict import Origin, joined_parts, session_parts
from tracejudge import Trace
from worker.core.config.graders import Grader, Graders
from worker.core.queue.batch import Evaluation, Member, Session
from worker.core.selection.sampling import Choice
from worker.core.selection.stream_entry import TraceEntry
from worker.core.storage.group_reader import entry_position

_DAY_S: Final = 86_400
# Times outside the years from 2000 to 2100 are wrong.
_EARLIEST_S: Final = 946_684_800
_LATEST_S: Final = 4_102_444_800


class ChosenEvaluation(NamedTuple):
    """One chosen evaluation, and its grader."""

    grader: Grader
    evaluation: Evaluation


def leave_out_shed(
    chosen: Sequence[ChosenEvaluation], shed: Collection[str]
) -> tuple[list[ChosenEvaluation], Counter[str]]:
    """Return the evaluations whose judge models are not shed, and the number of the others by judge model."""
    # A panel is shed with any of its members, since it would wait for their verdicts.
    shed_models = [
        next((name for name in (grader.judge_model, *grader.members) if name in shed), None) for grader, _ in chosen
    ]
    kept = [evaluation for evaluation, name in zip(chosen, shed_models, strict=True) if name is None]
    return kept, Counter(name for name in shed_models if name is not None)


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
    """Makes evaluations. Their ids depend on trace, judge, version and judge model alone, and not on their origin."""

    def __init__(self, graders: Graders) -> None:
        self._graders = graders
        self._templates: dict[tuple[str, str], _Template] = {}

    def make(self, entry: TraceEntry, choices: Sequence[Choice], origin: Origin) -> list[ChosenEvaluation]:
        """Make all evaluations that are chosen for a trace."""
        prefix = publication_parts(entry)
        return self._make_all(prefix, period_of(entry), choices, origin)

    def make_session(
        self, trace: Trace, choices: Sequence[Choice], origin: Origin, session: Session
    ) -> list[ChosenEvaluation]:
        """Make the evaluations of a conversation; ``trace`` is any of its traces."""
        # The period is a day, so that a conversation gathered anew on another day is found (scripts/ledger.lua).
        period = f"d{int(time.time()) // _DAY_S}"
        return self._make_all(session_parts(trace, session.generation), period, choices, origin, session)

    def _make_all(
        self, prefix: bytes, period: str, choices: Sequence[Choice], origin: Origin, session: Session | None = None
    ) -> list[ChosenEvaluation]:
        made = []
        for judge, name, probability in choices:
            template = self._templates.get((judge, name))
            if template is None:
                grader = self._graders.grader(name)
                version = self._graders.version(judge, grader.judge_model)
                # Scores are kept for a panel that is not chosen, because feedback or a replay may choose it later.
                keep = (judge, grader.judge_model) in self._graders.combined_by_panels
                suffix = joined_parts(judge, version, grader.judge_model, "0")
                of_members = tuple(
                    (member, joined_parts(part, self._graders.version(part, member), member, "0"))
                    for part in (JUDGE_PAIR if judge == GROUNDED_AND_RELEVANT.name else (judge,))
                    for member in grader.members
                )
                template = _Template(grader, version, keep, suffix, of_members)
                self._templates[judge, name] = template
            grader, version, keep, suffix, suffixes = template
            members = tuple([Member(judge_model, _id(prefix, end)) for judge_model, end in suffixes])
            evaluation_id = _id(prefix, suffix)
            evaluation = Evaluation(evaluation_id, period, judge, version, probability, origin, keep, members, session)
            made.append(ChosenEvaluation(grader, evaluation))
        return made


def period_of(entry: TraceEntry) -> str:
    """Return the period of the ledger that holds the evaluations of a trace: an hour, or the day of arrival."""
    for time_s in (entry.trace.ended_at, entry.trace.started_at):
        if time_s is not None and _EARLIEST_S <= time_s < _LATEST_S:
            return str(int(time_s) // 3_600)
    return f"d{entry_position(entry.entry_id)[0] // (_DAY_S * 1000)}"


def publication_parts(entry: TraceEntry) -> bytes:
    """Encode the identity of one publication of a trace."""
    return joined_parts(entry.trace.trace_id, entry.trace.span_id or "", entry.publication_id)


def question_of(trace: Trace) -> str:
    """Return the question of a trace: its input, else the last message of its user."""
    messages = (message.content for message in reversed(trace.messages or ()) if message.role == "user")
    return trace.input or next(filter(None, messages), "")


def told_marks(trace: Trace, chosen: Sequence[ChosenEvaluation], *, in_session: bool) -> str:
    """Return a mark of 8 characters for each evaluation, and one for the trace in its conversation.

    Two publications of one trace have the same marks if question and answer are the same: they tell of one call.
    """
    # The texts are long: they are hashed once, and not for each evaluation.
    told = hashlib.blake2b(joined_parts(question_of(trace).strip(), trace.output.strip()), digest_size=6)
    parts = [joined_parts(each.judge, each.version, grader.judge_model) for grader, each in chosen]
    if in_session:
        parts.append(joined_parts(trace.session_id or ""))
    marks = []
    for part in parts:
        mark = told.copy()
        mark.update(part)
        marks.append(base64.b64encode(mark.digest()).decode())
    return "".join(marks)


def _id(prefix: bytes, suffix: bytes) -> str:
    return hashlib.blake2b(prefix + suffix, digest_size=16).hexdigest()
