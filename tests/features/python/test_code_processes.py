"""The processes of a judge in code: kept, shared, begun anew with pauses, and never left behind."""

import asyncio
import gc
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from code_judges import (
    FILE,
    PATIENT,
    judged,
    let_hanging_pass_time,
    of_file,
    pass_time,
    processes,
    running,
    told,
    trace,
    wait_for_end,
    written,
)
from support.processes import PATIENCE_S, Program, wait_until

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge, JudgeFailedError, Reading
from judges.core.verdict import Assessment
from judges.features.python.api import ClosedError, NotStartedError
from judges.features.python.importing import load
from judges.features.python.installed import make
from judges.features.python.process import Limits, Pool, Process
from judges.features.python.process import Program as Run
from judges.features.python.protocol import Start
from judges.features.python.runner import observe
from tracejudge import Document, Message, Span, ToolCall, Trace, Usage


def process_of(assessment: Assessment) -> int:
    return int(assessment.scores[0].label or "")


def run(judge: Judge, each: Trace) -> Any:
    assert judge.run is not None
    return judge.run(each)


def pool(name: str, sleep: Any = asyncio.sleep, *, processes: int = 1, fingerprint: str | None = None) -> Pool:
    target = f"{FILE}:{name}"
    program = Run(target, Start(name, sys.path), fingerprint or load(target).judge.fingerprint, Limits(60.0, processes))
    return Pool(program, sleep)


def connection_of(pool: Pool) -> socket.socket:
    """Return the pipe to its only process."""
    (slot,) = pool._slots
    assert slot.process is not None
    assert slot.process._transport is not None
    return cast("socket.socket", slot.process._transport.get_extra_info("socket"))


class TestKept:
    def test_one_process_judges_all_traces(self) -> None:
        assessments = judged(of_file("same_process"), *[trace()] * 5)
        assert len({process_of(assessment) for assessment in assessments}) == 1
        assert process_of(assessments[0]) != os.getpid()

    def test_no_process_begins_before_a_trace_comes(self) -> None:
        judged(of_file("same_process"))

    def test_a_judge_that_was_closed_begins_anew(self) -> None:
        judge = of_file("same_process")
        first, second = judged(judge, trace()), judged(judge, trace())
        assert process_of(first[0]) != process_of(second[0])

    def test_a_process_that_ended_while_it_was_idle_costs_no_trace(self) -> None:
        judge = of_file("same_process")

        async def look() -> tuple[Assessment, Assessment]:
            first = await evaluate(judge, trace(), None)
            os.kill(process_of(first), signal.SIGKILL)
            os.waitid(os.P_PID, process_of(first), os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - the loop is not to hear
            return first, await evaluate(judge, trace(), None)

        first, second = running(look, judge)
        assert second.outcome == "scored"
        assert process_of(first) != process_of(second)

    def test_a_judge_sees_the_trace_that_was_published(self) -> None:
        full = trace(
            context=["Text.", Document("More.", id="d", score=0.5)],
            tool_calls=[ToolCall("find", {"a": [1, None, "é\0"]}, error="none")],
            spans=[Span("s", "step", attributes={"x": {"y": 1.5}})],
            messages=[Message("user", None)],
            usage=Usage(1, 2),
            tags={"team": "a"},
        )
        (assessment,) = judged(of_file("same_process"), full)
        assert assessment.rationale == repr([full.trace_id, full.context, full.tool_calls, full.tags])

    def test_a_trace_of_megabytes_is_judged(self) -> None:
        (assessment,) = judged(of_file("has_link"), trace("word " * 800_000 + "https://example.org"))
        assert assessment.scores[0].passed


class TestSeveral:
    def test_so_many_processes_judge_at_the_same_time_and_no_more(self, tmp_path: Path) -> None:
        judge = of_file("holds", processes=2)

        async def all_of_them() -> list[Assessment]:
            return await asyncio.gather(*(evaluate(judge, told(folder=tmp_path), None) for _ in range(20)))

        assessments = running(all_of_them, judge)
        assert {assessment.outcome for assessment in assessments} == {"scored"}
        assert len({process_of(assessment) for assessment in assessments}) == 2

    def test_further_processes_begin_only_when_the_first_is_busy(self) -> None:
        assessments = judged(of_file("same_process", processes=8), *[trace()] * 5)
        assert len({process_of(assessment) for assessment in assessments}) == 1

    def test_waiting_for_a_process_is_no_part_of_the_time_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        let_hanging_pass_time(monkeypatch)
        judge = of_file("by_the_trace")
        orders = ["hang"] * 2 + ["no"] * 200

        async def all_of_them() -> list[Assessment]:
            return await asyncio.gather(*(evaluate(judge, told(do=order), None) for order in orders))

        notes = [each.note for each in running(all_of_them, judge)]
        assert notes == ["took longer than 60 s"] * 2 + [None] * 200

    def test_an_answer_counts_that_came_in_time_while_the_loop_was_busy(self) -> None:
        async def look() -> Reading:
            tried = pool("has_link")
            await tried.ask(trace())
            asking = asyncio.ensure_future(tried.ask(trace()))
            await asyncio.sleep(0)  # it asks
            # The loop is held until the answer is there, and then the time is over.
            assert select.select([connection_of(tried)], [], [], PATIENCE_S)[0]
            pass_time(60)
            try:
                return await asking
            finally:
                await tried.aclose()

        assert running(look).scores[0].passed


class Pauses(list[float]):
    """Those that were made, in seconds; none of them takes any time."""

    async def sleep(self, seconds: float) -> None:
        self.append(seconds)


class TestBegunAnew:
    def test_the_pauses_grow_while_no_process_answers(self) -> None:
        pauses = Pauses()

        async def ask() -> None:
            tried = pool("exits", pauses.sleep)
            for _ in range(11):
                with pytest.raises(JudgeFailedError):
                    await tried.ask(trace())
            assert tried.pids == []

        running(ask)
        assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]

    def test_an_answer_ends_the_pauses(self) -> None:
        pauses = Pauses()

        async def ask() -> None:
            tried = pool("by_the_trace", pauses.sleep)
            for order in ("crash", "crash", "crash", "no", "crash", "crash", "no"):
                if order == "no":
                    await tried.ask(told(do=order))
                else:
                    with pytest.raises(JudgeFailedError):
                        await tried.ask(told(do=order))
            await tried.aclose()

        running(ask)
        assert pauses == [0.1, 0.2]

    def test_the_pauses_grow_while_each_trace_uses_up_the_memory(self) -> None:
        pauses = Pauses()

        async def ask() -> None:
            tried = pool("finds_no_memory", pauses.sleep)
            for _ in range(4):
                with pytest.raises(JudgeFailedError, match="MemoryError"):
                    await tried.ask(trace())
            assert tried.pids == []

        running(ask)
        assert pauses == [0.1, 0.2]

    GOOD = "from judges.code import judge\n@judge\ndef good(trace) -> bool: return {}\n"

    def failing(self, judge: Judge, error: type[Exception], times: int = 1) -> str:
        """Ask a judge whose processes do not come up; give what it says."""

        async def ask() -> str:
            for _ in range(times):
                with pytest.raises(error) as failed:
                    await run(judge, trace())
            return str(failed.value)

        return running(ask, judge)

    def test_a_judge_that_cannot_be_imported_again_is_not_a_failed_judge(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "beside.py").touch()
        (tmp_path / "judged.py").write_text(f"import beside\n{self.GOOD.format('True')}")
        judge = make("good", {"code": f"{tmp_path / 'judged.py'}:good", **PATIENT})
        (tmp_path / "beside.py").unlink()
        text = "did not start: cannot be imported (ModuleNotFoundError: No module named 'beside' (judged.py:1))"
        assert self.failing(judge, NotStartedError, times=2) == text
        assert caplog.messages == [f"the judge good cannot judge: {text}"], "once, and not for each trace"
        (tmp_path / "beside.py").touch()
        assert judged(judge, trace())[0].outcome == "scored"

    def test_a_module_that_ends_its_process_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "beside.py").touch()
        (tmp_path / "judged.py").write_text(f"import beside\n{self.GOOD.format('True')}")
        judge = make("good", {"code": f"{tmp_path / 'judged.py'}:good", **PATIENT})
        (tmp_path / "beside.py").write_text("import os\nos._exit(9)\n")
        assert self.failing(judge, NotStartedError) == "did not start: ended by itself (exit code 9)"

    def test_a_file_that_changes_is_run_as_it_was_read(self, tmp_path: Path) -> None:
        file = tmp_path / "judged.py"
        file.write_text(self.GOOD.format("True"))
        judge = make("good", {"code": f"{file}:good", **PATIENT})
        file.write_text(self.GOOD.format("False"))
        assert judged(judge, trace())[0].scores[0].passed is True
        file.unlink()
        assert judged(judge, trace())[0].scores[0].passed is True

    def test_a_module_that_changed_is_not_run_under_the_old_version(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.syspath_prepend(tmp_path)
        file = tmp_path / "changing_judges.py"
        file.write_text(self.GOOD.format("True"))
        judge = make("good", {"code": "changing_judges:good", **PATIENT})
        file.write_text(self.GOOD.format("False"))
        text = "its module changed after the worker started; restart the worker"
        assert self.failing(judge, NotStartedError, times=3) == text
        assert caplog.messages == [f"the judge good cannot judge: {text}"]


class Watching:
    def __init__(self) -> None:
        self.under_way = 0
        self.ended: list[str] = []

    def begins(self) -> None:
        self.under_way += 1

    def ends(self, status: str, took_s: float) -> None:
        assert took_s > 0
        self.under_way -= 1
        self.ended.append(status)


class TestWatched:
    def test_an_observer_is_told_how_traces_fare(self) -> None:
        judge, watching = of_file("by_the_trace", time_limit_s=60), Watching()
        observe(judge, watching)
        judged(judge, *(told(do=order) for order in ("no", "raise", "crash", "no")))
        assert watching.ended == ["ok", "judge_failed", "judge_failed", "ok"]
        assert watching.under_way == 0

    def test_observers_are_told_of_cancelled_and_unstarted_traces(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        judge, watching = of_file("waits_for_a_program"), Watching()
        observe(judge, watching)

        async def ask() -> None:
            asking = asyncio.ensure_future(run(judge, told(file=tmp_path / "pid")))
            await asyncio.to_thread(written, tmp_path / "pid")
            asking.cancel()
            await asyncio.wait([asking])
            monkeypatch.setattr(sys, "executable", "/nowhere/python")
            with pytest.raises(NotStartedError):
                await run(judge, trace())

        running(ask, judge)
        assert (watching.ended, watching.under_way) == (["cancelled", "internal_error"], 0)


class TestEnded:
    def test_a_cancelled_evaluation_kills_its_process(self, tmp_path: Path) -> None:
        judge, file = of_file("waits_for_a_program"), tmp_path / "pid"

        async def cancel() -> None:
            asking = asyncio.ensure_future(evaluate(judge, told(file=file), None))
            await asyncio.to_thread(written, file)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await asyncio.to_thread(wait_for_end, written(file))

        running(cancel, judge)

    def test_closing_ends_running_evaluations_without_failing_the_judge(self, tmp_path: Path) -> None:
        judge, file = of_file("waits_for_a_program"), tmp_path / "pid"

        async def close() -> None:
            asking = [asyncio.ensure_future(run(judge, told(file=file))) for _ in range(3)]
            await asyncio.to_thread(written, file)
            assert judge.close is not None
            await judge.close()
            results = await asyncio.gather(*asking, return_exceptions=True)
            assert [type(result) for result in results] == [ClosedError] * 3
            wait_for_end(written(file))

        running(close, judge)

    def test_a_code_judge_runs_in_loops_of_other_threads(self) -> None:
        assessments: list[Assessment] = []
        judge = of_file("has_link")
        threads = [
            threading.Thread(target=lambda: assessments.extend(judged(judge, trace())), daemon=True) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
            thread.join(60)
        assert [assessment.outcome for assessment in assessments] == ["scored"] * 2

    def test_a_code_judge_runs_in_a_loop_of_uvloop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        judge, before, ask = of_file("by_the_trace"), processes(), Process.ask

        async def asked(self: Process, message: bytes, limit_s: float) -> bytes:
            # The time of this loop cannot be moved; a limit as short for all traces would make slow ones fail.
            return await ask(self, message, 0.3 if b'"hang"' in message else limit_s)

        monkeypatch.setattr(Process, "ask", asked)

        async def look() -> list[str | None]:
            assessments = [await evaluate(judge, told(do=order), None) for order in ("no", "crash", "hang", "no")]
            assert judge.close is not None
            await judge.close()
            return [assessment.note for assessment in assessments]

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            assert runner.run(look()) == [None, "ended by itself (exit code 3)", "took longer than 60 s", None]
        assert set(processes()) <= set(before)

    def test_a_machine_without_room_for_a_process_is_no_failure_of_the_judge(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        judge = of_file("has_link")
        monkeypatch.setattr(sys, "executable", "/nowhere/python")

        async def ask() -> None:
            with pytest.raises(NotStartedError, match="did not start: No such file or directory"):
                await run(judge, trace())

        running(ask, judge)

    @pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
    def test_a_process_left_by_a_closed_loop_ends_with_the_next_loop(self) -> None:
        judge, before = of_file("same_process"), processes()
        asyncio.run(evaluate(judge, trace(), None))
        (left,) = set(processes()) - set(before)
        judged(judge, trace())
        wait_for_end(left)
        gc.collect()  # the connection that nobody closed


def cpu_s(pid: int) -> float:
    """Read how much CPU time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


PARENT = """
import asyncio, sys, threading
from judges.features.python.installed import make
from judges.calling.evaluation import evaluate
from tracejudge import Trace

trace = Trace(trace_id="1", service="bot", output="Yes.", tags={"file": sys.argv[2]})
judges = [make(name, {"code": f"{sys.argv[1]}:{name}", "time_limit_s": 1000}) for name in sys.argv[3:]]

async def main():
    idle, *busy = judges
    await evaluate(idle, trace, None)
    asking = [asyncio.ensure_future(evaluate(judge, trace, None)) for judge in busy]
    print("asked", flush=True)
    if sys.argv[2]:
        await asyncio.gather(*asking)

thread = threading.Thread(target=lambda: asyncio.run(main()))
thread.start()
thread.join()
"""


class TestParent:
    def test_no_process_outlives_a_worker_that_is_killed(self, tmp_path: Path) -> None:
        file = tmp_path / "pid"
        names = ("has_link", "waits_for_a_program", "loops", "ignores_signals")
        with Program("-c", PARENT, FILE, file, *names, folder=tmp_path) as parent:
            parent.wait_for("asked")
            grandchild = written(file)
            children = wait_until(lambda: len(processes(parent.pid)) == 4 and processes(parent.pid))
            parent.kill()
            for pid in (*children, grandchild):
                wait_for_end(pid)

    def test_a_process_that_never_lets_go_of_its_lock_ends_with_the_worker(self, tmp_path: Path) -> None:
        names = ("has_link", "holds_the_lock_of_the_interpreter")
        with Program("-c", PARENT, FILE, "x", *names, folder=tmp_path) as parent:
            parent.wait_for("asked")
            children = wait_until(lambda: len(processes(parent.pid)) == 2 and processes(parent.pid))
            wait_until(lambda: max(map(cpu_s, children)) > 1, what="a process to hold its lock")
            parent.kill()
            for pid in children:
                wait_for_end(pid)

    def test_a_process_that_holds_its_lock_during_the_import_ends_too(self, tmp_path: Path) -> None:
        (tmp_path / "beside.py").touch()
        (tmp_path / "judged.py").write_text(f"import beside\n{TestBegunAnew.GOOD.format('True')}")
        spin = "import re\nre.match('(a+)+$', 'a' * 64 + 'b')\n"
        change = f"open('beside.py', 'w').write({spin!r})\n\nasync def main():"
        parent_text = PARENT.replace("async def main():", change).replace("await evaluate(idle, trace, None)", "")
        names = ("good", "good")
        with Program("-c", parent_text, tmp_path / "judged.py", "x", *names, folder=tmp_path) as parent:
            parent.wait_for("asked")
            (child,) = wait_until(lambda: len(processes(parent.pid)) == 1 and processes(parent.pid))
            wait_until(lambda: cpu_s(child) > 1, what="a process to hold its lock")
            parent.kill()
            wait_for_end(child)

    def test_memory_that_runs_out_takes_a_judge_first(self, tmp_path: Path) -> None:
        (tmp_path / "judged.py").write_text(
            "from judges.code import Score, judge\n@judge\ndef marked(trace) -> Score:\n"
            "    return Score(1, label=open('/proc/self/oom_score_adj').read().strip())\n"
        )
        (assessment,) = judged(make("marked", {"code": f"{tmp_path / 'judged.py'}:marked", **PATIENT}), trace())
        assert assessment.scores[0].label == "1000"

    def test_no_process_outlives_a_worker_that_closes_nothing(self, tmp_path: Path) -> None:
        with Program("-c", PARENT, FILE, "", "has_link", folder=tmp_path) as parent:
            parent.wait_for("asked")
            assert parent.wait() == 0
