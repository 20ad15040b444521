"""Verdicts, and filters with the numbers of the verdicts that each selects."""

import msgspec

from judges.core.verdict import Score
from support.stage_parts import Keyspace, make_verdict
from worker.base.lookup.verdict_filter import FAILED, VerdictFilter

PASSED, FAILING = (
    {"outcome": "scored", "scores": (Score("safety", value, passed=bool(value)),)} for value in (1.0, 0.0)
)
VERDICTS = [
    make_verdict(1, **PASSED),
    make_verdict(2, **FAILING, service="shop-2", origin="replay"),
    make_verdict(3, service="shop[2]", judge="groundedness"),
    make_verdict(4, outcome="unscored", reason="refusal", trace_id="order-1"),
    make_verdict(5, **PASSED, service="Shop", trace_id="order-12"),
]


CASES = [
    (VerdictFilter(), [1, 2, 3, 4, 5]),
    (VerdictFilter(services=("shop",)), [1, 4]),
    (VerdictFilter(services=("shop*",)), [1, 2, 3, 4]),
    (VerdictFilter(services=("shop-?", "Shop")), [2, 5]),
    (VerdictFilter(services=("shop[[]2]",)), [3]),
    (VerdictFilter(services=("[!s]hop",)), [5]),
    (VerdictFilter(judges=("ground*",)), [3]),
    (VerdictFilter(origin="replay"), [2]),
    (VerdictFilter(outcomes=FAILED), [2, 3, 4]),
    (VerdictFilter(outcomes=("passed",), services=("shop",)), [1]),
    (VerdictFilter(traces=("order-1",)), [4, 5]),
    (VerdictFilter(traces=("order-12", f"{3:032x}")), [2, 5]),
    (VerdictFilter(trace_ids=frozenset({"order-1", f"{3:032x}"})), [2, 4]),
    (VerdictFilter(since_ms=4), [4, 5]),
    (VerdictFilter(since_ms=2, until_ms=3), [2, 3]),
]


def write_verdicts(keyspace: Keyspace) -> None:
    for number, verdict in enumerate(VERDICTS, 1):
        keyspace.client.xadd(keyspace.keys.verdicts, {"v": "1", "j": msgspec.json.encode(verdict)}, id=f"{number}-0")


def entry_ids(numbers: list[int]) -> list[str]:
    """Return the ids of these verdicts, the newest first."""
    return [f"{number}-0" for number in reversed(numbers)]
