"""Services that publish traces at a steady rate, and how good their answers are at the moment."""

import threading
import time
from collections.abc import Mapping
from typing import Any, Final, Self
from zlib import crc32

from reading_judge import Opinion, remark
from support.pipeline import Pipeline, make_traces

import tracejudge

__all__ = ["ENVIRONMENT", "BusyServices", "Flaws", "call"]

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

    def __init__(self, pipeline: Pipeline, *names: str, each_per_s: float = 10) -> None:
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
