"""The traffic of end-to-end tests: answers that say what judges think of them, services at work, and judged weeks."""

import datetime as dt
import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, Self, get_args
from zlib import crc32

import msgspec
from support.endpoint import ChatEndpoint
from support.otlp import OtlpReceiver, failing
from support.pipeline import Pipeline, Worker, make_traces
from support.processes import free_port
from support.replies import Behaviour, Call, answers_json, refuses
from support.tables import read_table
from whole_picture import JUDGE_MODEL

import tracejudge
from judges.core.verdict import Score, Verdict
from judges.registry import catalogue
from worker.base.monitor.counts import field_of
from worker.base.monitor.feature import MonitorKeys
from worker.base.monitor.series import FINE_DAYS, FIVE_MINUTES_S, HOUR_S, Series, place
from worker.core.config.settings import Settings
from worker.features.canary.canary_file import Canary

Opinion = Literal["bad", "unknown", "refusal"]


def remark(judge: str, opinion: Opinion) -> str:
    """Write the sentence of an answer that a judge goes by; what bears none for it is good."""
    return f"For {judge} it is {opinion}."


def reads(call: Call) -> Behaviour:
    """Answer in the form that is asked for, by what the answer says of itself."""
    schema, material = call.body["response_format"]["json_schema"], call.text()
    opinions: tuple[Opinion, ...] = get_args(Opinion)
    # The name of the schema is that of the judge that asks.
    opinion = next((each for each in opinions if remark(schema["name"], each) in material), None)
    form = schema["schema"]["properties"]
    if opinion == "refusal":
        return refuses()
    if "sentences" in form:
        label = "unsupported" if opinion else "supported"
        line = {"sentence": "It.", "label": label, "rationale": "So.", "excerpt": "words that stand nowhere in it"}
        return answers_json({"sentences": [line]})
    if "score" in form:
        return answers_json({"justification": "It says so itself.", "score": 1 if opinion else 4})
    result = {"bad": "no", "unknown": "unknown", None: "yes"}[opinion]
    return answers_json({"rationale": "Let's think step by step. It says so itself.", "result": result})


# --- services ---

ENVIRONMENT: Final = "prod"
Flaws = Mapping[tuple[str, Opinion], float]
"""By judge and opinion the share of answers that the judge has this opinion of."""


def call(number: int, service: str, flaws: Flaws) -> tracejudge.Trace:
    """Make a call that has just ended; flaws are spread evenly over the numbers, so no luck looks like a fall."""
    remarks = [remark(*flaw) for flaw, share in flaws.items() if int((number + 1) * share) > int(number * share)]
    output = " ".join([f"Parcel {number} holds a lamp.", *remarks])
    place = crc32(service.encode()) * 1_000_000 + number
    fields: dict[str, Any] = {"service": service, "environment": ENVIRONMENT, "output": output, "ended_at": time.time()}
    return make_traces(1, first=place, **fields)[0]


class BusyServices:
    """Publishes through the SDK, in a thread, until the block ends."""

    def __init__(self, pipeline: Pipeline, *names: str, each_per_s: float = 5) -> None:
        """Prepare services whose answers are all good."""
        self._pipeline, self._each_per_s = pipeline, each_per_s
        self._flaws: dict[str, Flaws] = {name: {} for name in names}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="busy services", daemon=True)

    def __enter__(self) -> Self:
        tracejudge.init(service="tests", redis_url=self._pipeline.redis_url, prefix=self._pipeline.prefix)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(60)
        tracejudge.shutdown()

    def turn(self, service: str, flaws: Flaws) -> None:
        """Change how a service answers from now on."""
        assert service in self._flaws
        self._flaws[service] = flaws

    def _publish(self) -> None:
        began, published = time.monotonic(), 0
        while not self._stop.wait(0.02):
            due = int((time.monotonic() - began) * self._each_per_s)
            for number in range(published, due):
                for service, flaws in self._flaws.items():
                    tracejudge.publish(call(number, service, flaws))
            published = due


# --- all kinds of traffic at once: what scores, what has no score, what is lost or refused, and what comes late ---

SERVICE: Final = "shop"


@contextmanager
def motley(pipeline: Pipeline, endpoint: ChatEndpoint) -> Iterator[Worker]:
    """Run a worker that judges the traffic until the block ends."""
    table = read_table(__file__, "motley")
    for name, model in table["settings"]["models"].items():
        if model.get("provider") == "openai":
            away = f"http://127.0.0.1:{free_port()}/v1"
            model["base_url"] = away if name == "away" else endpoint.base_url
    with OtlpReceiver(failing(400)) as receiver, BusyServices(pipeline, SERVICE, "unruled", each_per_s=4) as services:
        services.turn(SERVICE, {(judge, opinion): share for judge, opinion, share in table["flaws"]})
        worker = pipeline.worker(**table["settings"], otlp_endpoint=receiver.root_url)
        # A trace that no rule chooses until its user is heard.
        trace = call(0, "clerk", {})
        tracejudge.publish(trace)
        tracejudge.feedback(trace.trace_id, score=-1)
        # What the SDK would not write: no JSON, a field that nobody knows, and losses of another producer.
        for fields in table["by_hand"]:
            pipeline.add(**{name: each if isinstance(each, str) else json.dumps(each) for name, each in fields.items()})
        yield worker


# --- weeks of judged traffic in the form of the monitor ---

DAY_S: Final = 24 * HOUR_S
_WEEKS_S: Final = 16 * DAY_S
_CANARY_DAYS: Final = 9


def version(judge: str) -> str:
    """Return a judge's version as it stands in labels."""
    return catalogue()[judge].version[:8]


class Past:
    """The verdicts of the past, collected and then written to Redis."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.now = time.time()
        self._store, self._keys = pipeline.store, MonitorKeys(pipeline.keys.prefix)
        self._hashes: dict[str, dict[str, Any]] = defaultdict(dict)
        self._verdicts: list[tuple[float, Verdict]] = []

    def series(
        self, service: str, judge: str, share: Callable[[float], float], an_hour: int = 120, model: str = ""
    ) -> Iterator[tuple[float, int, int]]:
        """Add verdicts at a rate until now; yield the time, the verdicts and the passes of each five minutes.

        Args:
            service: Whose traffic.
            judge: The judge, and its metric.
            share: The share that passes, by the age in seconds; below 0 nothing is judged.
            an_hour: Verdicts in an hour.
            model: The segment, empty for the whole.
        """
        segment = ("model", model) if model else ("", "")
        labels = Series(service, ENVIRONMENT, judge, version(judge), JUDGE_MODEL, judge, *segment)
        self._hashes[self._keys.quality_series][labels.id] = msgspec.json.encode(labels)
        each, hour = an_hour // 12, (0, 0)
        last = int(self.now // FIVE_MINUTES_S) * FIVE_MINUTES_S
        for at in range(int((last - _WEEKS_S) // HOUR_S) * HOUR_S, last, FIVE_MINUTES_S):
            hour = (0, 0) if at % HOUR_S == 0 else hour
            if (part := share(self.now - at)) < 0:
                continue
            # Drawn by the age: at any time of the day the same happens so long ago.
            chance = random.Random(f"{service} {judge} {model} {last - at}")
            passed = sum(chance.random() < part for _ in range(each))
            hour = hour[0] + each, hour[1] + passed
            where = place(self._keys, labels.id, at)
            self._hashes[where.hour_key][f"{where.hour}A"] = _sums(*hour)
            if at >= last - FINE_DAYS * DAY_S:
                self._hashes[where.five_key][f"{where.five}A"] = _sums(each, passed)
            yield at, each, passed

    def confirmed(self, service: str, judge: str, at: float, failures: int) -> None:
        """Count failures of a safety judge that a second judging confirmed."""
        series = Series(service, ENVIRONMENT, judge, version(judge), JUDGE_MODEL, judge)
        bucket = str(int(at // FIVE_MINUTES_S))
        for word in ("failed", "confirmed"):
            key = self._keys.quality_counts("safety", _date(at))
            self._hashes[key][field_of((series.id, bucket, word))] = failures

    def failing(self, service: str, judge: str, age_s: float, **fields: Any) -> str:
        """Put a failing verdict into the outbox, and return its trace id."""
        trace_id = f"{len(self._verdicts):032x}"
        verdict = Verdict(
            evaluation_id=trace_id,
            outcome="scored",
            scores=(Score(judge, 0.0, passed=False),),
            metrics=(judge,),
            trace_id=trace_id,
            service=service,
            environment=ENVIRONMENT,
            judge=judge,
            judge_version=catalogue()[judge].version,
            judge_model=JUDGE_MODEL,
            started_at=self.now - age_s,
            duration_s=1.0,
            **fields,
        )
        self._verdicts.append((self.now - age_s, verdict))
        return trace_id

    def canary(self, judge: str, agrees: Callable[[int, float], bool]) -> None:
        """Add hourly verdicts on the canary; `agrees` decides by the number of a trace and the age in seconds."""
        traces = sorted(Canary.from_settings(Settings()).ids_by_judge[judge])
        series = judge, version(judge), JUDGE_MODEL
        for age_h in range(_CANARY_DAYS * 24):
            at = self.now - age_h * HOUR_S
            for number, trace_id in enumerate(traces):
                labels = (*series, trace_id, str(int(agrees(number, age_h * HOUR_S))))
                for key, field in (
                    (self._keys.quality_counts("canary", _date(at)), field_of(labels)),
                    (self._keys.quality_counts("canary_hours", _date(at)), field_of((str(int(at // HOUR_S)), *labels))),
                ):
                    self._hashes[key][field] = self._hashes[key].get(field, 0) + 1

    def write(self) -> None:
        """Write everything to Redis."""
        hashes: Mapping[str, Mapping[str, Any]] = self._hashes
        self._store.pipeline(lambda pipe: [pipe.hset(key, mapping=dict(fields)) for key, fields in hashes.items()])
        for at, verdict in sorted(self._verdicts, key=lambda each: each[0]):
            entry = {"v": 1, "j": msgspec.json.encode(verdict)}
            self._store.call(lambda client: client.xadd(self._store.keys.verdicts, entry, id=f"{int(at * 1000)}-*"))  # noqa: B023


def _sums(judged: int, passed: int) -> bytes:
    return msgspec.msgpack.encode([judged, judged, passed, judged, passed])


def _date(at: float) -> dt.date:
    return dt.datetime.fromtimestamp(at, dt.UTC).date()
