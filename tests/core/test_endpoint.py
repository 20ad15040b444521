"""Judging by a real endpoint over HTTP: concurrency, and the reason of each failure."""

from collections import Counter

import pytest
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline, make_traces
from support.processes import wait_until

GROUNDED = [{"name": "grounded", "judges": ["groundedness"]}]


def models(endpoint: ChatEndpoint, **settings: object) -> dict[str, object]:
    model = {"provider": "openai", "base_url": endpoint.base_url, "model": "judge-1", **settings}
    return {"default": model}


def test_two_hundred_evaluations_run_concurrently(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    """The concurrency limit rises from 64 while no call is answered."""
    hold = replies.Hold()
    endpoint.behaviour = replies.held(hold)
    pipeline.worker(rules=GROUNDED, models=models(endpoint))
    pipeline.publish(make_traces(200))
    wait_until(lambda: endpoint.in_flight == 200, what="all calls to be under way")
    hold.release()
    assert pipeline.settled(200).scored == 200
    assert len(endpoint.calls) == 200


def test_calls_in_flight_stay_within_the_limit_of_the_model(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    hold = replies.Hold()
    endpoint.behaviour = replies.held(hold, replies.slow(0.05))
    worker = pipeline.worker(rules=GROUNDED, models=models(endpoint, max_in_flight=7))
    pipeline.publish(make_traces(100))
    wait_until(lambda: endpoint.in_flight == 7, what="as many calls as may be under way")
    hold.release()
    assert pipeline.settled(100).scored == 100
    assert endpoint.max_in_flight == 7
    page = worker.scrape()
    assert page.value("tracejudge_judge_concurrency_limit", judge_model="judge-1") == 7
    assert page.value("tracejudge_judge_in_flight", judge_model="judge-1") == 0


def test_work_is_parked_while_the_endpoint_refuses_connections(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    endpoint.close()
    worker = pipeline.worker(rules=GROUNDED, models=models(endpoint))
    pipeline.publish(make_traces(20))
    wait_until(lambda: worker.scrape().value("tracejudge_batches_parked") >= 1, what="work to be parked")
    account = pipeline.account()
    assert (account.waiting, account.scored, account.lost) == (20, 0, 0)
    endpoint.start()
    account = pipeline.settled(20)
    assert (account.scored, account.lost) == (20, 0)


UNREADABLE = {
    "prose": (replies.answers("I think it is fine."), "invalid_answer", 2),
    "empty": (replies.answers(""), "invalid_answer", 1),
    "off the menu": (replies.answers_json({"rationale": "x", "result": "maybe"}), "out_of_range", 2),
    "refused": (replies.refuses("I cannot do that."), "refusal", 1),
    "cut off": (replies.truncated('{"rationale": "x"'), "truncated", 2),
    "filtered": (replies.filtered(""), "content_filter", 1),
    "bad request": (replies.failing(400, "not taken: Parcel 7 holds word0 word1 word2 word3 word4"), "bad_request", 1),
}


def test_an_invalid_answer_is_unscored_with_its_reason_and_never_zero(
    pipeline: Pipeline, endpoint: ChatEndpoint
) -> None:
    worker = pipeline.worker(rules=GROUNDED, models=models(endpoint))
    reasons: Counter[str] = Counter()
    for number, (name, (behaviour, reason, calls)) in enumerate(UNREADABLE.items(), 1):
        endpoint.forget()
        endpoint.behaviour = behaviour
        pipeline.publish(make_traces(1, first=number))
        account = pipeline.settled(number)
        assert (account.unscored, account.scored, account.lost) == (number, 0, 0), name
        reasons[f"unscored:{reason}"] += 1
        assert account.reasons == reasons, name
        assert len(endpoint.calls) == calls, name
    page = worker.counted(len(UNREADABLE))
    for reason, count in reasons.items():
        assert page.value("tracejudge_unscored_total", reason=reason.removeprefix("unscored:")) == count
    assert page.total("tracejudge_score_count") == 0
    assert page.value("tracejudge_verdicts_total", outcome="unscored") == len(UNREADABLE)
    assert "holds word0 word1" not in worker.program.output, "the log quotes the trace"


def test_a_trace_that_is_too_long_for_the_model_causes_no_call(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    pipeline.worker(rules=GROUNDED, models=models(endpoint, max_input_tokens=1000))
    pipeline.publish(make_traces(1, context=["word " * 2000]))
    account = pipeline.settled(1)
    assert (account.reasons, endpoint.calls) == ({"unscored:input_too_long": 1}, ())


def test_tokens_and_cost_are_counted(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    usage = replies.Usage(prompt_tokens=1000, completion_tokens=100)
    endpoint.behaviour = replies.yes_no(usage=usage)
    price = {"input": 2.0, "output": 10.0}
    worker = pipeline.worker(rules=GROUNDED, models=models(endpoint, price=price))
    pipeline.publish(make_traces(10))
    pipeline.settled(10)
    page = worker.counted(10)
    of_model = {"judge_model": "judge-1", "judge": "groundedness"}
    assert page.value("tracejudge_judge_tokens_total", direction="input", **of_model) == 10_000
    assert page.value("tracejudge_judge_tokens_total", direction="output", **of_model) == 1_000
    assert page.total("tracejudge_judge_cost_usd_total", **of_model) == pytest.approx(0.03)
    assert {entry.verdict.cost_usd for entry in pipeline.outbox()} == {0.003}
