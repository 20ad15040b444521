"""The index of the board: it selects what the commands select, from all partitions, and forgets what is trimmed."""

from support.filter_cases import CASES, entry_ids, write_verdicts
from support.published import TRACES
from support.stage_parts import Keyspace, make_verdict

from worker.base.lookup.verdict_filter import VerdictFilter
from worker.features.board.index import VerdictIndex
from worker.features.board.overview import read_funnel


def test_the_index_and_the_outbox_select_the_same(keyspace: Keyspace) -> None:
    write_verdicts(keyspace)
    index = VerdictIndex(keyspace.store)
    index.run_once()
    for verdict_filter, numbers in CASES:
        answers = index.select_answers(verdict_filter, limit=9)
        selected = [verdict.entry.partition("@")[2] for answer in answers for verdict in answer if verdict.is_selected]
        assert selected == entry_ids(numbers), verdict_filter


def test_the_index_is_of_all_servers(published: list[Keyspace]) -> None:
    index = VerdictIndex(published[0].store)
    index.run_once()
    answers = index.select_answers(VerdictFilter(), limit=100)
    entries = index.read([verdict.entry for answer in answers for verdict in answer])
    assert {entry.verdict.trace_id for entry in entries.values()} == {trace["trace_id"] for trace in TRACES}
    times = [answer[0].at_ms for answer in answers]
    assert times == sorted(times, reverse=True), "an answer stands at its newest verdict"
    assert index.select_answers(VerdictFilter(), limit=100, before=answers[3][0].entry) == answers[4:]
    late = make_verdict(900, trace_id="late")
    published[2].send(late)
    index.run_once()
    ((newest,),) = index.select_answers(VerdictFilter(), limit=1)
    assert newest.evaluation_id == late.evaluation_id
    published[1].client.delete(published[1].keys.verdicts)
    index.run_once()
    left = {answer[0].entry[0] for answer in index.select_answers(VerdictFilter(), limit=100)}
    assert left == {"0", "2"}, "what is trimmed leaves the index"
    funnel = read_funnel(published[0].store)
    assert (funnel.traces[0].total, funnel.unexplained) == (len(TRACES), 0)
