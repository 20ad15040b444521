"""Egress in a whole run: it also applies to evaluations sampled before the rule existed, and to replays."""

from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline, make_traces
from support.processes import wait_until

FREE = {"name": "free", "judges": ["safety"], "model": "outside"}
KEPT = {"name": "kept", "judges": ["groundedness"], "model": "inside", "egress": ["inside"]}


def models(endpoint: ChatEndpoint) -> dict[str, object]:
    return {"inside": {"provider": "lexical"}, "outside": {"base_url": endpoint.base_url, "model": "judge-1"}}


def test_a_trace_with_egress_is_judged_by_the_allowed_model_only(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    worker = pipeline.worker(rules=[KEPT, FREE], models=models(endpoint))
    pipeline.publish(make_traces(10))
    account = pipeline.settled(10)
    assert (account.chosen, account.scored, account.lost) == (10, 10, 0)
    assert endpoint.calls == ()
    worker.program.wait_for("egress excludes another rule's model")


def test_evaluations_sampled_before_the_egress_rule_are_not_sent(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    pipeline.worker(roles="ingest", rules=[FREE], models=models(endpoint))
    pipeline.publish(make_traces(5))
    wait_until(lambda: pipeline.account().chosen == 5, what="the traces to be chosen")
    pipeline.worker(roles="judge", rules=[KEPT, FREE], models=models(endpoint), give_up_after=1)
    wait_until(lambda: pipeline.account().dead == 5, what="the evaluations to be given up")
    account = pipeline.account()
    assert (endpoint.calls, account.lost, account.reasons) == ((), 0, {"dead:judge_rejected": 5})
