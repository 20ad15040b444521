"""Every built-in judge in the real pipeline, and rules with `samples`: one entry, N costs, in all that counts them."""

import re
from collections import Counter
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import structs
from support.board import serving
from support.fixtures import newest_redis
from support.judging import MODEL, PANEL, YES, JudgingWorker, Workers, choose
from support.judging import MODELS as MEMBERS
from support.passes import Replays
from support.pipeline import Pipeline
from support.processes import wait_until
from support.stages import Keyspace, read_balanced_account
from support.tables import read_table
from support.verdicts import DAY_S, NOW, publish
from support.verdicts import verdict as verdict_at

import tracejudge
from judges.core.combine import GROUNDED_AND_RELEVANT
from judges.core.decision import Decision
from judges.core.model import ChatRequest, ChatResponse, ModelSettings
from judges.core.verdict import Score, Verdict
from judges.endpoints.client import LimitedModel
from judges.models.scripted import Step
from judges.registry import catalogue, load_judges
from worker.core.config.loading import judge_names, rule_faults
from worker.core.config.settings import Rule, Settings
from worker.features.budgets.feature import Budget, BudgetKeys
from worker.features.cascades.feature import Cascade
from worker.features.report.figures import Period, Scope, make_report
from worker.features.report.sources import read_redis
from worker.features.report.text import as_text

any_redis_server = newest_redis
TABLE = read_table(__file__, "judging")
"""A trace that every judge can judge, settings of judges that give them other versions, and what no judge can judge."""
TRACE = msgspec.convert(TABLE["trace"], tracejudge.Trace)
SETTINGS, EMPTY = TABLE["settings"], TABLE["empty"]
RULES = [
    {"name": unit, "unit": unit, "judges": [name for name, judge in catalogue().items() if judge.unit == unit]}
    for unit in ("trace", "session")
]


def test_each_judge_scores_a_trace_under_each_of_its_metrics_and_one_without_fields_is_unscored(
    pipeline: Pipeline,
) -> None:
    worker = pipeline.worker(rules=RULES, session_idle=0.1)
    ids = {"trace_id": "e" * 32, "span_id": "e" * 16, "id": "e" * 16, "session_id": "session 2"}
    pipeline.publish([TRACE, structs.replace(TRACE, **ids, **EMPTY)])
    account = pipeline.settled(2)
    judges = len(catalogue()) + 1
    assert (account.chosen, account.scored, account.unscored, account.lost) == (2 * judges, judges, judges, 0)
    ended = [entry.verdict for entry in pipeline.outbox()]
    empty = [verdict for verdict in ended if verdict.outcome == "unscored"]
    assert {(verdict.reason, verdict.scores, verdict.calls) for verdict in empty} == {("missing_input", (), ())}

    verdicts = {verdict.judge: verdict for verdict in ended if verdict.outcome == "scored"}
    # The rule names both judges of the combined verdict, which asks no model.
    joint = verdicts.pop(GROUNDED_AND_RELEVANT.name)
    page = worker.counted(2 * sum(len(verdict.metrics) for verdict in (joint, *verdicts.values())))
    assert (joint.metrics, joint.calls) == (GROUNDED_AND_RELEVANT.metric_names, ())
    assert {name: verdict.metrics for name, verdict in verdicts.items()} == {
        name: judge.metric_names for name, judge in catalogue().items()
    }
    for name, judge in catalogue().items():
        verdict = verdicts[name]
        assert verdict.judge_version == judge.version
        assert tuple(score.metric for score in verdict.scores) == verdict.metrics
        assert all(0 <= score.value <= 1 for score in verdict.scores)
        for metric, score in zip(judge.metrics, verdict.scores, strict=True):
            assert (score.passed is None) is (metric.pass_rule is None), (name, metric.name)
            outcomes = ("unrated",) if metric.pass_rule is None else ("pass", "fail")
            series = {"judge": name, "version": judge.version[:8], "metric": metric.name}
            counted = [page.total("tracejudge_verdicts_total", outcome=outcome, **series) for outcome in outcomes]
            assert sum(counted) == 1, (name, metric.name)


def test_settings_change_versions_and_spans_and_named_tools_are_the_context_of_a_trace_without_one(
    pipeline: Pipeline,
) -> None:
    grounded = {"judges": ["groundedness"], "context_tools": ["kb_search"]}
    where = {"has": ["context"], "service": "helpdesk"}
    whole = {"name": "all", "judges": list(SETTINGS), "where": {"service": TRACE.service}}
    pipeline.worker(rules=[whole, {"name": "grounded", "where": where, **grounded}], judges=SETTINGS)
    warranty = "The warranty runs for two years."
    asked = {"service": "helpdesk", "input": "How long is the warranty?", "output": warranty}
    spans = [tracejudge.Span("00f067aa0ba902b8", "search", kind="RETRIEVER", outputs=[warranty])]
    calls = [tracejudge.ToolCall("kb_search", {}, warranty), tracejudge.ToolCall("send_mail", {}, "Sent.")]
    contents: tuple[dict[str, Any], ...] = ({"spans": spans}, {"tool_calls": calls}, {"tool_calls": calls[1:]})
    traces = [
        tracejudge.Trace(trace_id=letter * 32, id=letter * 16, **content, **asked)
        for letter, content in zip("abc", contents, strict=True)
    ]
    pipeline.publish([TRACE, *traces])
    account = pipeline.settled(4)
    counts = len(SETTINGS) + 2
    assert (account.chosen, account.scored, account.no_rule, account.lost) == (counts, counts, 1, 0)
    verdicts = [entry.verdict for entry in pipeline.outbox()]
    versions = {verdict.judge: verdict.judge_version for verdict in verdicts if verdict.service == TRACE.service}
    assert versions == {name: load_judges(SETTINGS)[name].version for name in SETTINGS}
    assert not set(versions.values()) & {judge.version for judge in catalogue().values()}
    of_helpdesk = [verdict for verdict in verdicts if verdict.service == "helpdesk" and verdict.scores[0].passed]
    assert {verdict.trace_id[0] for verdict in of_helpdesk} == {"a", "b"}


NO = YES.replace("yes", "no")
CHEAP = ModelSettings(provider="decisions", base_url="http://localhost", model="cheap")
MODELS = {"default": MODEL, "other": structs.replace(MODEL, model="other"), "cheap": CHEAP}


class Cheap:
    settings = CHEAP

    async def complete(self, request: ChatRequest) -> ChatResponse:  # noqa: ARG002 - the protocol's
        return ChatResponse("", input_tokens=9, output_tokens=1, decisions=(Decision((0.6,)),))

    async def aclose(self) -> None:
        pass


def rule(samples: int = 3, **fields: Any) -> Rule:
    return Rule.from_keys(**{"name": "all", "judges": ("safety",), "samples": samples, **fields})


def verdicts(keyspace: Keyspace) -> list[Verdict]:
    return [msgspec.convert(entry, Verdict) for entry in keyspace.outbox("j")]


def judge_all(keyspace: Keyspace, worker: JudgingWorker, count: int, **settings: Any) -> None:
    choose(keyspace, count, **settings)
    while keyspace.batches():
        keyspace.make_due()
        worker.sweep()


def test_an_evaluation_is_one_entry_and_costs_all_askings(keyspace: Keyspace, new_worker: Workers) -> None:
    """A tie is final; what a passing failure leaves undecided is asked again."""
    cases: list[tuple[int, tuple[Any, ...], tuple[str, str | None, int]]] = [
        (3, (YES, NO, YES), ("scored", None, 3)),
        (2, (YES, NO), ("unscored", "disagreement", 2)),
        (3, (YES, NO, Step(failure="timeout"), YES, YES, NO), ("scored", None, 6)),
    ]
    for number, (samples, steps, expected) in enumerate(cases):
        rules = (rule(samples),)
        judge_all(keyspace, new_worker(*steps, rules=rules), 1, first=number, rules=rules)
        *_, judged = verdicts(keyspace)
        assert (judged.outcome, judged.reason, judged.attempts) == expected
        assert judged.input_tokens == sum(map(len, filter(None, (getattr(step, "text", step) for step in steps))))
        assert judged.cost_usd == pytest.approx(3e-6 * judged.input_tokens), "1 and 2 USD for a million tokens"
    account = read_balanced_account(keyspace)
    assert (account.scored, account.unscored, account.waiting) == (2, 1, 0)


def test_budgets_pay_for_each_asking(keyspace: Keyspace, new_worker: Workers) -> None:
    settings: dict[str, Any] = {"rules": (rule(),), "budgets": {"all": Budget(tokens_per_day=20_000)}}
    worker = new_worker(limited=LimitedModel, **settings)
    judge_all(keyspace, worker, 60, **settings)
    worker.judging.stop(0.1)
    judged = verdicts(keyspace)
    assert {each.reason for each in judged} == {None, "over_budget"}
    spent = int(keyspace.client.hget(BudgetKeys(keyspace.keys.prefix).budget("all")[0], "tokens:day"))
    assert spent == sum(each.input_tokens + each.output_tokens for each in judged) <= 20_000


def test_second_models_cascades_and_panels_ask_as_often(keyspace: Keyspace, new_worker: Workers) -> None:
    cascades = {"both": Cascade("cheap", "other", rate=1.0)}
    panel = rule(model=("default", "first", "last"), combine="majority")
    repeated = {("scripted", "live"): 3, ("scripted", "repeat"): 3, ("other", "repeat"): 3}
    cases: list[tuple[dict[str, Any], Rule, dict[tuple[str, str], int]]] = [
        ({"models": MODELS}, rule(repeat=1.0, second_model="other"), repeated),
        ({"models": MODELS, "cascades": cascades}, rule(model="both"), {("cheap", "live"): 1, ("other", "live"): 3}),
        ({"models": MEMBERS}, panel, {**{(name, "live"): 3 for name in "abc"}, (PANEL, "live"): 0}),
    ]
    for number, (models, asking, expected) in enumerate(cases):
        before, settings = len(verdicts(keyspace)), {**models, "rules": (asking,)}
        worker = new_worker(**settings)
        worker.models.update({"cheap": Cheap()} if "cheap" in worker.models else {})  # type: ignore[dict-item]
        judge_all(keyspace, worker, 1, first=number, **settings)
        attempts = [((each.judge_model, each.origin), each.attempts) for each in verdicts(keyspace)[before:]]
        assert sorted(attempts) == sorted(expected.items()), number


def test_a_replay_judges_again_after_the_number_has_changed(keyspace: Keyspace, new_worker: Workers) -> None:
    judge_all(keyspace, new_worker(rules=(rule(1),)), 2, rules=(rule(1),))
    for samples, made in ((1, 0), (3, 2), (3, 0)):
        rules = (rule(samples),)
        assert Replays(keyspace, rules=rules, models={"default": MODEL}).make().get("chosen", 0) == made, samples
        new_worker(rules=rules).sweep()
    attempts = [(each.origin, each.attempts) for each in verdicts(keyspace)]
    assert attempts == [("live", 1)] * 2 + [("replay", 3)] * 2


def test_what_cannot_be_sampled_stops_the_start() -> None:
    free = {"words": {"instructions": "Sum up {{ outputs }}.", "result": "text"}}
    cheap = rule(2, name="cheap", model="cheap")
    cases: dict[str, tuple[Rule, ...]] = {
        "rules[1].samples: another rule asks [models.default] for 'safety' 3 times": (rule(), rule(1, name="b")),
        "rules[0].samples: the answers of 'words' have no majority": (rule(judges=("words",)),),
        "": (rule(), rule(1, name="b", model="other"), cheap, structs.replace(cheap, name="c", samples=1)),
    }
    for expected, rules in cases.items():
        settings = Settings.from_keys(models=MODELS, rules=rules, judges=free)
        faults = [text for text in map(str, rule_faults(settings, judge_names(settings))) if ".samples: " in text]
        assert (len(faults), expected in "".join(faults)) == (bool(expected), True), (expected, faults)


def test_report_and_board_show_split_votes(keyspace: Keyspace) -> None:
    def voted(number: int, votes: str, **fields: Any) -> Verdict:
        """Make a verdict by the majority; `-` is an asking without a score."""
        asked = [{} if vote == "-" else {"scores": {"safety": {"passed": vote == "1"}}} for vote in votes]
        score = Score("safety", 1.0, passed=votes.count("1") > 1)
        return verdict_at(number, NOW - DAY_S, **{"scores": (score,), "details": {"samples": asked}, **fields})

    counts = Counter({"111": 60, "000": 20, "110": 12, "01-": 4, "-0-": 3})
    verdicts = [voted(number, votes) for number, votes in enumerate(counts.elements())]
    verdicts += [voted(900 + number, "100", origin="replay") for number in range(9)]
    member = {"outcome": "scored", "scores": {"safety": {"passed": True}}}
    panel = {"models": {"a": {"outcome": "unscored"}, "b": member, "c": member}}
    odd: tuple[dict[str, Any], ...] = ({"samples": 7}, {"models": [7]})
    verdicts += [voted(991 + number, "", details=details) for number, details in enumerate(odd)]
    publish(keyspace, [*verdicts, voted(990, "", judge_model="majority(a,b,c)", details=panel)])
    scope = Scope.from_options(Period(NOW - 2 * DAY_S, NOW + 1), None, ("service",), None, (), NOW)
    report = make_report(scope, read_redis(keyspace.store, scope, NOW))
    of_panel, of_samples = sorted(report.votes, key=lambda votes: votes.verdicts)
    assert (of_panel.labels["judge_model"], of_panel.verdicts, of_panel.split.value) == ("majority(a,b,c)", 1, 0.0)
    assert of_panel.sentence.endswith("have split votes; effective votes: not known")
    expected = (
        "safety of shop by lexical: 16.7% (10.5% to 25.4%) of 96 verdicts have split votes; effective votes: 1.1 ("
    )
    assert expected in " ".join(as_text(report).split())
    with serving(keyspace.url, keyspace.prefix) as url, httpx.Client(base_url=url, timeout=60) as client:
        page = wait_until(lambda: "/series/" in (text := client.get("/?period=7d").text) and text, what="the rows")
        pages = [client.get(path + "?period=7d").text for path in re.findall(r'"(/series/\w+)"', page)]
    assert [of_samples.sentence in text for text in pages].count(True) == 1
