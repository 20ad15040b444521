"""Observation across threads, tasks, contexts and processes: what belongs together is together, and nothing else."""

import asyncio
import contextvars
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from observe_reading import published, the_trace
from sdk_started import StartedSdk

import tracejudge
from tracejudge.tracing import step as recording


@tracejudge.observe(name="work")
def work(who: str) -> str:
    return who


@tracejudge.observe(name="awaited")
async def awaited(who: str) -> str:
    await asyncio.sleep(0)
    return work(who)


def test_gathered_coroutines_are_spans_with_their_own_children(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="answer")
    async def answer() -> str:
        return "".join(await asyncio.gather(*(awaited(who) for who in "abc")))

    assert asyncio.run(answer()) == "abc"
    spans = the_trace(sdk)["spans"]
    parents = {span["span_id"]: span for span in spans if span["name"] == "awaited"}
    works = [span for span in spans if span["name"] == "work"]
    assert [span["parent_id"] for span in parents.values()] == ["s0"] * 3
    assert sorted(span["outputs"] for span in works) == ["a", "b", "c"]
    assert all(parents[span["parent_id"]]["outputs"] == span["outputs"] for span in works)


def test_traces_of_concurrent_tasks_keep_apart(sdk: StartedSdk) -> None:
    async def main() -> None:
        await asyncio.gather(*(awaited(who) for who in "abc"))

    asyncio.run(main())
    traces = published(sdk)
    assert sorted(trace["output"] for trace in traces) == ["a", "b", "c"]
    assert all([span["outputs"] for span in trace["spans"]] == [trace["output"]] for trace in traces)


def test_asyncio_threads_go_along_with_their_trace(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="answer")
    async def answer() -> str:
        return await asyncio.to_thread(work, "a")

    asyncio.run(answer())
    assert [span["name"] for span in the_trace(sdk)["spans"]] == ["work"]


def test_pools_go_along_when_given_the_context(sdk: StartedSdk) -> None:
    with ThreadPoolExecutor(4) as pool, tracejudge.trace(name="answer"):
        futures = [pool.submit(contextvars.copy_context().run, work, str(number)) for number in range(200)]
        for future in futures:
            future.result()
    spans = the_trace(sdk)["spans"]
    assert sorted(int(span["outputs"]) for span in spans) == list(range(200))


def test_new_threads_begin_traces_of_their_own(sdk: StartedSdk) -> None:
    with tracejudge.trace(name="answer"):
        thread = threading.Thread(target=work, args=("a",))
        thread.start()
        thread.join()
    first, second = published(sdk)
    assert (first["name"], second["name"]) == ("work", "answer")
    assert "spans" not in second


def test_a_task_that_outlives_its_trace_is_an_unfinished_span_and_then_on_its_own(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="background")
    async def background(told: asyncio.Event) -> str:
        await told.wait()
        return work("late")

    @tracejudge.observe(name="answer")
    async def answer(told: asyncio.Event) -> "asyncio.Task[str]":
        task = asyncio.create_task(background(told))
        await asyncio.sleep(0)
        return task

    async def main() -> None:
        told = asyncio.Event()
        task = await answer(told)
        told.set()
        await task

    asyncio.run(main())
    first, second = published(sdk)
    assert [(span["name"], span["status"]) for span in first["spans"]] == [("background", "unfinished")]
    assert (second["name"], second["output"]) == ("work", "late")


def test_blocks_left_in_another_order_keep_no_context(sdk: StartedSdk) -> None:
    first, second = tracejudge.trace(name="first"), tracejudge.trace(name="second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    work("after")
    first_trace, other = published(sdk)
    assert [(span["name"], span["status"]) for span in first_trace["spans"]] == [("second", "unfinished")]
    assert (other["name"], recording.current_step()) == ("work", None)


def test_a_block_closed_in_another_context_leaves_that_alone(sdk: StartedSdk) -> None:
    block = tracejudge.trace(name="block")
    contextvars.Context().run(block.__enter__)
    with tracejudge.trace(name="other") as other:
        block.__exit__(None, None, None)
        assert tracejudge.current().span_id == other.span_id
    assert [trace["name"] for trace in published(sdk)] == ["block", "other"]


def test_contexts_that_are_never_left_keep_one_trace_and_not_all(sdk: StartedSdk) -> None:
    """Each block is closed elsewhere, so this context keeps what was entered last, and nothing before it."""
    for _ in range(3):
        block = tracejudge.trace(name="block")
        block.__enter__()
        contextvars.Context().run(block.__exit__, None, None, None)
    assert recording._current.get() is block._step
    with tracejudge.trace(name="next") as t:
        assert (t._step._outer, t._step.parent) == (None, None)
    assert recording._current.get() is None
    assert len(published(sdk)) == 4


def test_a_fork_within_a_trace_publishes_it_once(sdk: StartedSdk) -> None:
    with tracejudge.trace(name="answer", output="once") as t:
        work("parent")
        child = os.fork()
        if child == 0:
            # In the child this trace is not there: calls are not its spans, and its end publishes nothing.
            alone, before = recording.current_step() is None, sdk.client.totals().published
            t.__exit__(None, None, None)
            os._exit(0 if alone and sdk.client.totals().published == before else 1)
        assert os.waitpid(child, 0) == (child, 0)
    assert [(trace["name"], len(trace["spans"])) for trace in published(sdk)] == [("answer", 1)]
