"""The plan of a day's judging is near to what then happens."""

import time
from dataclasses import replace

from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline
from support.replies import Call, Reply, Usage, answers

import tracejudge
from judges.core.model import ModelSettings, Price
from judges.registry import configured
from worker.cli.demo import rules
from worker.cli.demo.sample_traffic import Traffic, load_samples, make_plan
from worker.config.graders import Graders
from worker.config.settings import Settings
from worker.monitor.series import DAY_S
from worker.report.workload import Estimator, read_history
from worker.selection.sampling import Sampler

SECONDS = 40


def test_a_plan_is_within_five_percent_of_what_then_happens(pipeline: Pipeline) -> None:
    """The first half of the demo's traffic is planned from, and the second half is judged and compared."""

    def reply(call: Call) -> Reply:
        size = sum(len(message["content"]) for message in call.body["messages"])
        return replace(answers('{"rationale": "so", "result": "yes"}'), usage=Usage(size // 4, 20 + size % 7))

    with ChatEndpoint(reply) as endpoint:
        model = {"base_url": endpoint.base_url, "model": "judge", "price": {"input": 0.4, "output": 1.6}}
        pipeline.worker(models={"default": model}, rules=rules())
        traffic = Traffic(make_plan(load_samples(), SECONDS), time.time())
        tracejudge.init(service="tests", redis_url=pipeline.redis_url, prefix=pipeline.prefix)
        try:
            traffic.publish_due(SECONDS / 2)
            assert tracejudge.flush(60)
            first = traffic.published
            pipeline.settled(first)
            chat = ModelSettings(model="judge", base_url=endpoint.base_url, price=Price(input=0.4, output=1.6))
            settings = Settings(models={"default": chat}, rules=rules())
            before = pipeline.outbox()
            plan_of = len(make_plan(load_samples(), SECONDS)) - first
            now_s = pipeline.store.now_ms() / 1000
            graders = Graders(settings, configured(settings.judges))
            sampler = Sampler(settings, graders)
            history = read_history(settings, pipeline.store, now_s - DAY_S, now_s + 1)
            found = Estimator(settings, history).estimate(
                "test",
                graders,
                sampler,
                lambda entry: sampler.probabilities(entry.trace),
                period_s=DAY_S,
                traces=plan_of,
            )
            traffic.publish_due(SECONDS)
            assert tracejudge.flush(60)
            pipeline.settled(first + plan_of)
        finally:
            tracejudge.shutdown()
        after = [one.verdict for one in pipeline.outbox()[len(before) :]]
    real = {
        "judgements": len(after),
        "input_tokens": sum(verdict.input_tokens for verdict in after),
        "output_tokens": sum(verdict.output_tokens for verdict in after),
        "usd": sum(verdict.cost_usd or 0.0 for verdict in after),
    }
    errors = {name: getattr(found, name) / expected - 1 for name, expected in real.items()}
    assert max(map(abs, errors.values())) < 0.05, errors
