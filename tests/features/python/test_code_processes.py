"""The processes of a judge in code: imported, kept, shared, begun anew, failing in every way, never left behind."""

import asyncio
import gc
import os
import re
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
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
from judged_code import GIVEN, SECRET
from support.processes import PATIENCE_S, Program, cpu_s, wait_until
from support.tables import read_table

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge, JudgeFailedError, Reading
from judges.core.verdict import Assessment
from judges.custom import DefinitionError, define
from judges.features.python import protocol as environment
from judges.features.python.api import ClosedError, NotStartedError
from judges.features.python.importing import announced, load
from judges.features.python.installed import make
from judges.features.python.process import Limits, Pool, Process
from judges.features.python.process import Program as Run
from judges.features.python.protocol import Start
from judges.features.python.runner import observe
from tracejudge import Document, Message, Span, ToolCall, Trace, Usage

GOOD = "from judges.code import judge\n@judge\ndef good(trace) -> bool: return {}\n"


def test_a_judge_s_file_is_imported_once_and_its_output_goes_to_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "judged.py"
    noise = "import os\nprint('to sys.stdout')\nos.write(1, b'to the file')\n"
    file.write_text(f"{noise}{GOOD.format('True')}also_good = good\n")
    first = define("good", {"code": f"{file}:good"})
    print("a document")  # noqa: T201 - what a command prints
    output = capfd.readouterr()
    assert output.out == "a document\n"
    assert ("to sys.stdout" in output.err, "to the file" in output.err) == (True, True)
    file.unlink()
    # Nothing else is changed, for threads may run by now.
    monkeypatch.setattr("judges.features.python.importing.as_judges_find_it", pytest.fail)
    versions = {define("good", {"code": f"{file}:{name}"}).version for name in ("good", "also_good")}
    assert versions == {first.version}
    # One that takes long is logged.
    told_so = threading.Event()
    caplog.handler.addFilter(lambda _: told_so.set() is None)
    with announced("judges.d/slow.py:good", after_s=0):
        assert told_so.wait(60)
    assert caplog.messages == ["importing judges.d/slow.py:good takes long: it runs until this ends"]


def test_modules_beside_a_judge_s_file_are_imported_by_it_alone(tmp_path: Path) -> None:
    before, judges = list(sys.path), {}
    for result in (True, False):
        folder = tmp_path / f"{result}"
        (folder / "shared").mkdir(parents=True)
        (folder / "shared" / "beside.py").write_text(f"RESULT = {result}\n")
        (folder / "late.py").write_text(f"RESULT = {result}\n")
        (folder / "wave.py").write_text("raise ValueError\n")
        late = "def good(trace) -> bool:\n    import late\n    return RESULT is late.RESULT and {}\n"
        head = "import wave\nfrom judges.code import judge\nfrom shared.beside import RESULT\n@judge\n"
        (folder / "judged.py").write_text(head + late.format("RESULT and bool(wave.open)"))
        judges[result] = define("good", {"code": f"{folder / 'judged.py'}:good", **PATIENT})
    assert {result: judged(judge, trace())[0].scores[0].passed for result, judge in judges.items()} == {
        True: True,  # and they hide no installed module
        False: False,
    }
    assert (sys.path, "shared" in sys.modules) == (before, False)


SECRETS = {"OPENAI_API_KEY", "shop_token", "DB_PASSWORD", "TRACEJUDGE_REDIS_URL", "GCP_CREDENTIALS", "PGPASS"}
SECRETS |= {"SHOP_AUTH", "OTEL_EXPORTER_OTLP_HEADERS", "NAMED_IN_THE_FILE"}


def test_a_judge_and_its_import_find_variables_that_are_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {**dict.fromkeys(SECRETS, "x"), "CACHE": "redis://:word@host/0", "SHOP_REGION": "eu"}
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(environment, "_withheld", {"NAMED_IN_THE_FILE"})
    text = "import os\nfrom judges.code import Score, judge\n@judge\ndef seen(trace) -> Score:\n"
    (tmp_path / "variables.py").write_text(f"{text}    return Score(1, rationale=' '.join(os.environ))\n")
    table: dict[str, Any] = {"code": f"{tmp_path / 'variables.py'}:seen", **PATIENT}
    own, more = (
        set(f"{judged(define('seen', {**table, 'environment': names}), trace())[0].rationale}".split())
        for names in ([], ["shop_token", "CACHE"])
    )
    assert {"SHOP_REGION", "PATH"} <= own
    assert own & {*SECRETS, "CACHE"} == set()
    assert {"shop_token", "CACHE"} <= more
    before = dict(os.environ)
    (tmp_path / "judged.py").write_text(f"import os\nos.environ['DB_PASSWORD']\n{GOOD.format('True')}")
    table = {"code": f"{tmp_path / 'judged.py'}:good"}
    with pytest.raises(DefinitionError, match=r"KeyError: 'DB_PASSWORD' \(judged.py:2\)"):
        define("good", table)
    assert define("good", {**table, "environment": ["DB_PASSWORD"]}).name == "good"
    assert dict(os.environ) == before


def process_of(assessment: Assessment) -> int:
    return int(assessment.scores[0].label or "")


def run(judge: Judge, each: Trace) -> Any:
    assert judge.run is not None
    return judge.run(each)


def pool(name: str, sleep: Any = asyncio.sleep, *, processes: int = 1, fingerprint: str | None = None) -> Pool:
    target = f"{FILE}:{name}"
    program = Run(target, Start(name, sys.path), fingerprint or load(target).judge.fingerprint, Limits(60.0, processes))
    return Pool(program, sleep)


def test_one_process_judges_all_traces_as_they_were_published_until_it_is_closed_or_ends() -> None:
    judged(of_file("same_process"))  # and none begins before a trace comes
    judge = of_file("same_process", processes=8)
    full = trace(
        "word " * 800_000,  # megabytes
        context=["Text.", Document("More.", id="d", score=0.5)],
        tool_calls=[ToolCall("find", {"a": [1, None, "é\0"]}, error="none")],
        spans=[Span("s", "step", attributes={"x": {"y": 1.5}})],
        messages=[Message("user", None)],
        usage=Usage(1, 2),
        tags={"team": "a"},
    )

    async def look() -> list[Assessment]:
        assessments = [await evaluate(judge, each, None) for each in (trace(), trace(), full)]
        os.kill(process_of(assessments[0]), signal.SIGKILL)
        os.waitid(os.P_PID, process_of(assessments[0]), os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - the loop is not to hear
        return [*assessments, await evaluate(judge, trace(), None)]

    first, second, third, after = assessments = running(look, judge)
    assert third.rationale == repr([full.trace_id, full.context, full.tool_calls, full.tags])
    assert process_of(first) == process_of(second) == process_of(third), "further ones begin only when it is busy"
    assert after.outcome == "scored", "a process that ended while it was idle costs no trace"
    last = judged(judge, trace())[0]
    assert len({os.getpid(), *map(process_of, (*assessments, last))}) == 4, "a judge that was closed begins anew"


def test_so_many_processes_judge_at_the_same_time_and_no_more(tmp_path: Path) -> None:
    judge = of_file("holds", processes=2)

    async def all_of_them() -> list[Assessment]:
        return await asyncio.gather(*(evaluate(judge, told(folder=tmp_path), None) for _ in range(20)))

    assessments = running(all_of_them, judge)
    assert {assessment.outcome for assessment in assessments} == {"scored"}
    assert len({process_of(assessment) for assessment in assessments}) == 2


def test_a_trace_that_ends_the_process_costs_no_other_and_waiting_is_no_part_of_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_hanging_pass_time(monkeypatch)
    orders = ["no", "hang", "crash", "raise", "no"]
    late, ended = "took longer than 60 s", "ended by itself (exit code 3)"
    raised = f"raised ValueError in judged_code.py:{line('raise')}"
    notes = [each.note for each in judged(of_file("by_the_trace"), *(told(do=order) for order in orders))]
    assert notes == [None, late, ended, raised, None]
    judge, together = of_file("by_the_trace"), ["hang"] + ["no"] * 200

    async def all_of_them() -> list[Assessment]:
        return await asyncio.gather(*(evaluate(judge, told(do=order), None) for order in together))

    assert [each.note for each in running(all_of_them, judge)] == [late] + [None] * 200


def test_an_answer_counts_that_came_in_time_while_the_loop_was_busy() -> None:
    async def look() -> Reading:
        tried = pool("has_link")
        await tried.ask(trace())
        asking = asyncio.ensure_future(tried.ask(trace()))
        await asyncio.sleep(0)  # it asks
        # The loop is held until the answer is there, and then the time is over.
        (slot,) = tried._slots
        assert slot.process is not None
        assert slot.process._transport is not None
        connection = cast("socket.socket", slot.process._transport.get_extra_info("socket"))
        assert select.select([connection], [], [], PATIENCE_S)[0]
        pass_time(60)
        try:
            return await asking
        finally:
            await tried.aclose()

    assert running(look).scores[0].passed


@pytest.mark.slow("starts and ends many processes")
def test_pauses_grow_until_a_process_answers_or_while_each_trace_uses_up_the_memory() -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def ask(orders: Sequence[str], starts: int) -> None:
        tried = pool("by_the_trace", pause)
        tried._slots[0]._starts = starts
        for order in orders:
            fails = pytest.raises(JudgeFailedError, match=r"ended by itself|MemoryError")
            with nullcontext() if order == "no" else fails:
                await tried.ask(told(do=order))
        assert order == "no" or tried.pids == []
        await tried.aclose()

    for orders, starts, expected in (
        (["finds_no_memory"] * 2, 40, [10.0, 10.0]),
        # An answer ends the pauses.
        (["crash", "crash", "crash", "no", "crash", "no"], 0, [0.1, 0.2]),
    ):
        running(lambda orders=orders, starts=starts: ask(orders, starts))
        assert pauses == expected, orders
        pauses.clear()


@pytest.mark.slow("starts and ends many processes")
def test_a_judge_that_cannot_be_imported_again_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def not_started(judge: Judge, times: int = 2) -> str:
        """Ask a judge whose processes do not come up; return what it says, and check that it is logged once."""

        async def ask() -> str:
            for _ in range(times):
                with pytest.raises(NotStartedError) as failed:
                    await run(judge, trace())
            return str(failed.value)

        caplog.clear()
        text = running(ask, judge)
        assert caplog.messages == [f"the judge good cannot judge: {text}"], "once, and not for each trace"
        return text

    beside, file = tmp_path / "beside.py", tmp_path / "judged.py"
    beside.touch()
    file.write_text(f"import beside\n{GOOD.format('True')}")
    judge = make("good", {"code": f"{file}:good", **PATIENT})
    beside.unlink()
    text = "did not start: cannot be imported (ModuleNotFoundError: No module named 'beside' (judged.py:1))"
    assert not_started(judge) == text
    beside.touch()
    assert judged(judge, trace())[0].outcome == "scored"
    beside.write_text("import os\nos._exit(9)\n")
    assert not_started(judge, 1) == "did not start: ended by itself (exit code 9)"
    # A file is run as it was read, and a module that changed is not run.
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "changing_judges.py"
    file.write_text(GOOD.format("True"))
    of_path, of_module = (make("good", {"code": f"{code}:good", **PATIENT}) for code in (file, "changing_judges"))
    file.write_text(GOOD.format("False"))
    assert not_started(of_module) == "its module changed after the worker started; restart the worker"
    file.unlink()
    assert judged(of_path, trace())[0].scores[0].passed is True


def test_an_observer_is_told_how_traces_fare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    events: list[str] = []
    watching = SimpleNamespace(begins=lambda: events.append("begins"), ends=lambda status, _: events.append(status))
    judge = of_file("by_the_trace", time_limit_s=60)
    observe(judge, watching)
    judged(judge, *(told(do=order) for order in ("no", "raise", "crash", "no")))
    ends = ("ok", "judge_failed", "judge_failed", "ok")
    assert events == [event for end in ends for event in ("begins", end)]
    judge, file = of_file("waits_for_a_program"), tmp_path / "pid"
    observe(judge, watching)
    events.clear()

    async def ask() -> None:
        assert judge.close is not None
        asking = [asyncio.ensure_future(run(judge, told(file=file))) for _ in range(3)]
        await asyncio.to_thread(written, file)
        asking[0].cancel()
        await asyncio.wait(asking[:1])
        await judge.close()
        results = await asyncio.gather(*asking[1:], return_exceptions=True)
        assert [type(result) for result in results] == [ClosedError] * 2, "closing is no failure of the judge"
        await asyncio.to_thread(wait_for_end, written(file))
        # Nor is a machine without room for a process.
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(NotStartedError, match="did not start: No such file or directory"):
            await run(judge, trace())

    running(ask, judge)
    assert (events.count("cancelled"), events[-1]) == (1, "internal_error")
    assert events.count("begins") == len(events) / 2, "what begins ends"


def test_a_code_judge_runs_in_loops_of_other_threads_and_of_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = of_file("has_link")
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        outcomes = [thread.submit(judged, judge, trace()).result(60)[0].outcome for thread in (first, second)]
    assert outcomes == ["scored"] * 2
    judge, before, ask = of_file("by_the_trace"), processes(), Process.ask

    async def asked(self: Process, message: bytes, limit_s: float) -> bytes:
        # The time of this loop cannot be moved; a limit as short for all traces would make slow ones fail.
        return await ask(self, message, 0.3 if b'"hang"' in message else limit_s)

    monkeypatch.setattr(Process, "ask", asked)

    async def look() -> list[str | None]:
        assessments = [await evaluate(judge, told(do=order), None) for order in ("no", "hang", "crash")]
        assert judge.close is not None
        await judge.close()
        return [assessment.note for assessment in assessments]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(look()) == [None, "took longer than 60 s", "ended by itself (exit code 3)"]
    assert set(processes()) <= set(before)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_process_left_by_a_closed_loop_ends_with_the_next_loop() -> None:
    judge, before = of_file("same_process"), processes()
    asyncio.run(evaluate(judge, trace(), None))
    (left,) = set(processes()) - set(before)
    judged(judge, trace())
    wait_for_end(left)
    gc.collect()  # the connection that nobody closed


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


@pytest.mark.parametrize("during", ["traces", "the import"])
def test_no_process_outlives_a_worker_that_is_killed(tmp_path: Path, during: str) -> None:
    """Nor one that holds the lock of its interpreter, or whose program goes on."""
    text, file, pid = PARENT, FILE, tmp_path / "pid"
    names = ("has_link", "waits_for_a_program", "holds_the_lock_of_the_interpreter", "ignores_signals")
    if during == "the import":
        (tmp_path / "beside.py").touch()
        file, names = tmp_path / "judged.py", ("good", "good")
        file.write_text(f"import beside\n{GOOD.format('True')}")
        spin = "import re\nre.match('(a+)+$', 'a' * 64 + 'b')\n"
        change = f"open('beside.py', 'w').write({spin!r})\n\nasync def main():"
        text = text.replace("async def main():", change).replace("await evaluate(idle, trace, None)", "")
    with Program("-c", text, file, pid, *names, folder=tmp_path) as parent:
        parent.wait_for("asked")
        count = len(names) if during == "traces" else 1
        children = wait_until(lambda: len(processes(parent.pid)) == count and processes(parent.pid))
        wait_until(lambda: max(map(cpu_s, children)) > 0.7, what="a process to hold its lock")
        parent.kill()
        for child in (*children, *([written(pid)] if during == "traces" else [])):
            wait_for_end(child)
    if during == "traces":
        with Program("-c", PARENT, FILE, "", "has_link", folder=tmp_path) as parent:
            parent.wait_for("asked")
            assert parent.wait() == 0, "nor one that closes nothing"


def line(name: str) -> int:
    """Find the line that a judge or a case fails in: its last."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    begins = (f"def {name}(", f'"{name}":')
    first = next(number for number, text in enumerate(lines) if any(text_of in text for text_of in begins))
    ends = (number for number in range(first, len(lines)) if re.match(r" +case|$", lines[number + 1]))
    return next(ends) + 1


@pytest.mark.slow("starts and ends many processes")
def test_a_failed_judge_is_unscored_and_its_note_holds_no_text_of_it() -> None:
    failures = read_table(__file__, "code_judges")["failures"]
    assessments = {name: judged(of_file(name), trace())[0] for name in ("raises_later", "recurses")}
    # One process serves the cases of a judge, and another one those after a case that ends it.
    others = ["closes_files", *(name for name in failures if name not in {*GIVEN, *assessments})]
    for judge, names in (("by_the_trace", others), ("gives", [*GIVEN])):
        assessments |= dict(zip(names, judged(of_file(judge), *(told(do=name) for name in names)), strict=True))
    for name, text in failures.items():
        note = f"{text}{line(name)}" if text[-1] == ":" else text
        assert assessments[name] == Assessment("unscored", "judge_failed", note=note), name
        assert assessments[name].is_final
        assert SECRET not in f"{assessments[name]}", name
    closed = assessments["closes_files"]
    assert (closed.reason, f"{closed.note}".startswith("ended by itself")) == ("judge_failed", True)
    for name in ("holds_the_lock_of_the_interpreter", "ignores_signals"):
        (assessment,) = judged(of_file(name, time_limit_s=0.3), trace())
        assert assessment == Assessment("unscored", "judge_failed", note="took longer than 0.3 s"), name


def test_an_overrun_or_a_cancelled_judge_takes_along_the_programs_that_it_started(tmp_path: Path) -> None:
    judge, files = of_file("waits_for_a_program"), (tmp_path / "late", tmp_path / "cancelled")

    async def look() -> Assessment:
        late, cancelled = (asyncio.ensure_future(evaluate(judge, told(file=files[0]), None)), None)
        await asyncio.to_thread(written, files[0])
        pass_time(60)
        assessment = await late
        cancelled = asyncio.ensure_future(evaluate(judge, told(file=files[1]), None))
        await asyncio.to_thread(written, files[1])
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await asyncio.to_thread(wait_for_end, written(files[1]))
        return assessment

    assert running(look, judge).note == "took longer than 60 s"
    wait_for_end(written(files[0]))


def test_a_judge_that_prints_or_forks_is_scored(capfd: pytest.CaptureFixture[str]) -> None:
    assessments = judged(
        of_file("by_the_trace"), *(told(do=name) for name in ("prints", "is_told_to_stop", "forks") * 2)
    )
    assert [(assessment.outcome, assessment.note) for assessment in assessments] == [("scored", None)] * 6
    assert capfd.readouterr() == ("", "")


def test_a_judge_that_takes_more_memory_than_it_may_has_failed(tmp_path: Path) -> None:
    file = tmp_path / "judged.py"
    file.write_text(
        "from judges.code import Score, judge\nkept = []\n@judge\ndef keeps(trace) -> Score:\n"
        "    kept.append(bytes(100 << 20))\n"
        "    return Score(1, label=open('/proc/self/oom_score_adj').read().strip())\n"
        "@judge\ndef large(trace) -> bool: return bool(bytes(1 << 30))\n"
    )

    def limited(name: str, count: int = 1) -> list[Assessment]:
        return judged(make(name, {"code": f"{file}:{name}", "memory_mib": 512, **PATIENT}), *[trace()] * count)

    assert limited("large") == [Assessment("unscored", "judge_failed", note="raised MemoryError in judged.py:8")]
    keeping = limited("keeps", 8)
    outcomes = "".join(assessment.outcome[0] for assessment in keeping)
    assert ("u" in outcomes, "uu" in outcomes) == (True, False), "what it keeps from trace to trace ends with it"
    assert keeping[0].scores[0].label == "1000", "memory that runs out takes a judge first"
