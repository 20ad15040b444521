"""The filter of verdicts selects the same in the commands and in the index of the board."""

import msgspec
from support.stage_parts import Ground, make_verdict

from judges.core.verdict import Score
from worker.base.lookup.lookup import scan_verdicts
from worker.base.lookup.verdict_filter import FAILED, VerdictFilter
from worker.features.board.index import VerdictIndex

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
    (VerdictFilter(since_ms=4), [4, 5]),
    (VerdictFilter(since_ms=2, until_ms=3), [2, 3]),
]


def test_the_index_and_the_outbox_select_the_same(ground: Ground) -> None:
    for number, verdict in enumerate(VERDICTS, 1):
        ground.client.xadd(ground.keys.verdicts, {"v": "1", "j": msgspec.json.encode(verdict)}, id=f"{number}-0")
    index = VerdictIndex(ground.store)
    index.run_once()
    for wanted, numbers in CASES:
        from_index = [entry.entry_id for entry in index.read(index.select(wanted, limit=9)).values()]
        from_outbox = [entry.entry_id for entry in scan_verdicts(ground.store, wanted)]
        assert from_index == from_outbox == [f"{number}-0" for number in reversed(numbers)], wanted
