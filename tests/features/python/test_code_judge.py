"""A judge in Python on live traffic: it scores, traces on which it hangs or crashes are unscored, others continue."""

import re
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import redis
from support.pipeline import Pipeline, make_traces
from support.processes import wait_until

FILE = Path(__file__).with_name("judged_code.py")
LIMIT_S = 15
"""Time limit in real time: enough for a millisecond of work on a busy machine."""
RULES = [{"name": "all", "judges": ["by_the_trace", "has_link"]}]
TABLES = {
    "by_the_trace": {"code": f"{FILE}:by_the_trace", "time_limit_s": LIMIT_S},
    "has_link": {"code": f"{FILE}:has_link", "processes": 2},
}


@pytest.mark.slow("waits for time limits of judges")
def test_traces_that_break_a_judge_in_python_do_not_affect_others(pipeline: Pipeline) -> None:
    orders = {3: "hang", 20: "crash", 21: "raise"}
    traces = [
        trace
        for number in range(60)
        for trace in make_traces(1, first=number, tags={"do": orders.get(number, "nothing")})
    ]
    worker = pipeline.worker(rules=RULES, judges=TABLES)
    pipeline.publish(traces)
    account = pipeline.settled(len(traces))
    assert (account.chosen, account.scored, account.unscored, account.lost) == (120, 117, 3, 0)

    verdicts = [entry.verdict for entry in pipeline.outbox()]
    assert {verdict.judge_model for verdict in verdicts} == {"code"}
    unscored = {
        verdict.trace_id: (verdict.judge, verdict.reason, verdict.note) for verdict in verdicts if verdict.reason
    }
    assert unscored == {
        traces[3].trace_id: ("by_the_trace", "judge_failed", f"took longer than {LIMIT_S} s"),
        traces[20].trace_id: ("by_the_trace", "judge_failed", "ended by itself (exit code 3)"),
        traces[21].trace_id: ("by_the_trace", "judge_failed", f"raised ValueError in {FILE.name}:{_raising_line()}"),
    }
    scores = Counter((score.metric, score.value, score.passed) for verdict in verdicts for score in verdict.scores)
    assert scores == {("by_the_trace", 1.0, True): 57, ("has_link", 0.0, False): 60}

    page = worker.counted(120)
    assert page.total("tracejudge_verdicts_total", judge="by_the_trace", outcome="unscored") == 3
    assert page.total("tracejudge_unscored_total", judge="by_the_trace", reason="judge_failed") == 3
    assert page.total("tracejudge_verdicts_total", judge="has_link", outcome="fail") == 60


def test_evaluations_wait_while_a_judge_cannot_be_imported(pipeline: Pipeline, tmp_path: Path) -> None:
    beside, file = tmp_path / "beside.py", tmp_path / "judged.py"
    beside.touch()
    file.write_text("import beside\nfrom judges.code import judge\n@judge\ndef good(trace) -> bool: return True\n")
    rules = [{"name": "all", "judges": ["good"]}]
    worker = pipeline.worker(rules=rules, judges={"good": {"code": f"{file}:good"}})
    beside.unlink()
    pipeline.publish(make_traces(5))
    message = "the judge good cannot judge: did not start: cannot be imported (ModuleNotFoundError: "
    worker.program.wait_for(re.escape(message))
    wait_until(
        lambda: worker.program.stderr.count('"batch parked"') == len(_waiting(pipeline)), what="all to be parked"
    )
    beside.touch()
    for name in (pipeline.keys.leases, pipeline.keys.ready("code")):
        pipeline.store.call(partial(_make_due, name, _waiting(pipeline)))
    account = pipeline.settled(5)
    assert (account.chosen, account.scored, account.unscored, account.dead, account.lost) == (5, 5, 0, 0, 0)
    assert worker.program.output.count(message) == 1, "once, and not for each trace"


def test_a_judge_keeps_running_as_it_was_read_at_the_start(pipeline: Pipeline, tmp_path: Path) -> None:
    file = tmp_path / "judged.py"
    file.write_text("from judges.code import judge\n@judge\ndef good(trace) -> bool: return True\n")
    rules = [{"name": "all", "judges": ["good"]}]
    pipeline.worker(rules=rules, judges={"good": {"code": f"{file}:good"}})
    file.write_text("while writing it, an editor leaves what is no Python")
    pipeline.publish(make_traces(5))
    assert pipeline.settled(5).scored == 5


def test_the_processes_of_a_judge_end_with_their_worker(pipeline: Pipeline) -> None:
    worker = pipeline.worker(rules=RULES, judges=TABLES)
    pipeline.publish(make_traces(40, tags={"do": "nothing"}))
    assert pipeline.settled(40).scored == 80
    judging = _judging(worker.program.pid)
    assert len(judging) in {2, 3}
    assert worker.program.terminate() == 0
    wait_until(lambda: not any(map(_is_running, judging)), what="the processes of its judges to end")


def _waiting(pipeline: Pipeline) -> list[bytes]:
    return pipeline.store.call(lambda client: client.zrange(pipeline.keys.leases, 0, -1))


def _make_due(name: str, batches: list[bytes], client: redis.Redis) -> None:
    """Make parked batches due, which takes a minute otherwise."""
    client.zadd(name, dict.fromkeys(batches, 1), xx=True)


def _raising_line() -> int:
    return FILE.read_text(encoding="utf-8").splitlines().index("            raise ValueError(SECRET)") + 1


def _judging(worker: int) -> list[int]:
    """Return the processes in which a worker's judges run."""
    children = [pid for task in Path(f"/proc/{worker}/task").glob("*/children") for pid in task.read_text().split()]
    command = b"judges.features.python.child"
    return [int(pid) for pid in children if command in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
