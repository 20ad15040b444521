"""Evaluations: their ids, periods and members, and the batches in which a script gets those that are chosen."""

import base64
import hashlib
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from judges.core.combine import GROUNDED_AND_RELEVANT, JUDGE_PAIR
from judges.core.verdict import Origin, joined_parts, session_parts
from tracejudge import Trace
from worker.core.config.graders import Grader, Graders
from worker.core.config.settings import Settings
from worker.core.queue.batch import (
    BATCH_VERSION,
    Evaluation,
    Member,
    Session,
    batch_header,
    fresh_id,
    made_at_ms,
    without_texts,
)
from worker.core.queue.leases import READY_MS
from worker.core.queue.ledger import FIELD_BYTES, field_of
from worker.core.selection.sampling import Choice
from worker.core.selection.stream_entry import TraceEntry
from worker.core.storage.group_reader import entry_position
from worker.core.storage.keys import INGEST_GROUP, Keys

_encoder = msgspec.json.Encoder()
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
    """The common part of all evaluations by one judge and one grader."""

    grader: Grader
    version: str
    keep: bool
    suffix: bytes  # Of the hashed text that makes the id, behind the trace.
    # The judge models of the evaluations that are combined, each with its suffix.
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
    """Return a mark of 8 characters for each evaluation, and one for the trace in its conversation."""
    # Two publications of one trace have the same marks if question and answer are the same: they tell of one call.
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


@dataclass(slots=True)
class OpenBatch:
    """A batch that is being filled: its number in the plan, the indexes of its keys, and what it holds so far."""

    number: int
    id: str
    grader: Grader
    created_at: float
    key: int
    ready: int
    filled: int = 0
    version: int = BATCH_VERSION
    parts: list[bytes] = field(default_factory=list)  # Of its items, from the last one on without their end.
    length: int = 0  # The same.
    item: int = 0
    trace: bytes = b""

    @property
    def head(self) -> str:
        """The beginning of its JSON, up to its items."""
        return batch_header(self.id, self.grader.name, self.grader.judge_model, self.created_at, self.version)

    def add(self, trace: bytes, evaluation: bytes) -> tuple[int, int]:
        """Add an evaluation of a trace; return where the trace's item and the evaluation begin among the items."""
        if trace is self.trace:
            self._put(b",")
        else:
            self._put(b']},{"trace":' if self.parts else b'{"trace":')
            self.item, self.trace = self.length - len(b'{"trace":'), trace
            self._put(trace, b',"evaluations":[')
        begin = self.length
        self._put(evaluation)
        return self.item, begin

    def _put(self, *parts: bytes) -> None:
        self.parts += parts
        self.length += sum(map(len, parts))

    def body(self) -> bytes:
        """Return its JSON with all that was added."""
        return b"".join((self.head.encode(), *self.parts, b"]}]}"))

    def fields(self) -> dict[str, object]:
        """Return its part of the plan."""
        head = len(self.head.encode())
        return {
            "key": self.key,
            "id": self.id,
            "judge_model": self.grader.judge_model,
            "ready": self.ready,
            "made_at_ms": made_at_ms(self.id),
            "filled": self.filled,
            "head": head,
            "size": head + self.length + len(b"]}]}"),
        }


class BatchWriter:
    """Collects the batches of one script call, with everything that the script's plan refers to by index."""

    def __init__(self, settings: Settings, keys: Keys, script_keys: Sequence[str]) -> None:
        """Begin with the script's own keys; keys of batches follow."""
        self._settings = settings
        self._names = keys
        self._keys = list(script_keys)
        self._payloads: list[bytes] = []
        self._fields = bytearray()
        self.batches: list[OpenBatch] = []
        self._open: dict[Grader, OpenBatch] = {}
        self._ready_keys: dict[str, int] = {}

    @classmethod
    def for_choosing(cls, settings: Settings, keys: Keys, *script_keys: str) -> "BatchWriter":
        """Begin with the keys of ``scripts/batch_writer.lua``, and those that its script adds."""
        names = (keys.traces, keys.leases, keys.waiting, keys.account_now(), keys.account_all, keys.dead)
        return cls(settings, keys, (*names, keys.evaluations, *script_keys))

    def key(self, name: str) -> int:
        """Add a key and return its index."""
        self._keys.append(name)
        return len(self._keys)

    def payload(self, encoded: bytes) -> int:
        """Add a payload and return the index of its argument; the first argument is the plan."""
        self._payloads.append(encoded)
        return len(self._payloads) + 1

    def evaluations(self, chosen: Sequence[ChosenEvaluation], trace: Trace) -> list[dict[str, object]]:
        """Put evaluations of a trace into the open batches of their graders; return their part of the plan."""
        written: list[dict[str, object]] = []
        whole = shorter = b""
        for grader, evaluation in chosen:
            if grader.members:
                # Leave texts out, because panels combine verdicts and the texts would only fill their batches.
                encoded = shorter = shorter or _encoder.encode(without_texts(trace))
            else:
                encoded = whole = whole or _encoder.encode(trace)
            batch, text = self.put(grader, evaluation.batch_version), _encoder.encode(evaluation)
            item, begin = batch.add(encoded, text)
            # Redis 6.2 cannot read raw bytes in the plan, so the ledger's fields are a separate argument.
            self._fields += field_of(evaluation.id)
            written.append(
                {
                    "batch": batch.number,
                    "id": evaluation.id,
                    # The position of its first byte; Lua counts from 1.
                    "field": len(self._fields) - FIELD_BYTES + 1,
                    "period": evaluation.period,
                    "item": item,
                    "text": begin,
                    "size": len(text),
                }
            )
        return written

    def put(self, grader: Grader, version: int) -> OpenBatch:
        """Count an evaluation, which needs a batch version, into its grader's open batch; return the batch."""
        batch = self._open.get(grader)
        if batch is None or batch.filled >= self._settings.batch_size:
            created_at, judge_model = time.time(), grader.judge_model
            batch_id = fresh_id(judge_model, created_at)
            key = self.key(self._names.batch(batch_id))
            if judge_model not in self._ready_keys:
                self._ready_keys[judge_model] = self.key(self._names.ready(judge_model))
            number, ready = len(self.batches) + 1, self._ready_keys[judge_model]
            batch = self._open[grader] = OpenBatch(number, batch_id, grader, created_at, key, ready)
            self.batches.append(batch)
        batch.filled += 1
        # Workers that know only version 1 must leave a batch alone as soon as one evaluation needs version 2.
        batch.version = max(batch.version, version)
        return batch

    def finish(self, plan: Mapping[str, object]) -> tuple[list[str], list[bytes], dict[str, bytes]]:
        """Return the script's keys, its arguments (the plan, payloads, all fields of the ledger), and the batches."""
        complete = {
            "group": INGEST_GROUP,
            "ledger_ttl_s": self._settings.ledger_ttl_s,
            "account_ttl_s": 90 * 86_400,
            "ready_ms": READY_MS,
            "batches": [batch.fields() for batch in self.batches],
            **plan,
        }
        arguments = [msgspec.msgpack.encode(complete), *self._payloads, bytes(self._fields)]
        return self._keys, arguments, {self._keys[batch.key - 1]: batch.body() for batch in self.batches if batch.parts}
