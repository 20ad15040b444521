"""Which verdicts of the outbox a filter selects."""

from support.filter_cases import CASES, entry_ids, write_verdicts
from support.stage_parts import Keyspace

from worker.base.lookup.lookup import scan_verdicts


def test_a_filter_selects_by_globs_outcomes_and_times(keyspace: Keyspace) -> None:
    write_verdicts(keyspace)
    for selects, numbers in CASES:
        assert [entry.entry_id for entry in scan_verdicts(keyspace.store, selects)] == entry_ids(numbers), selects
