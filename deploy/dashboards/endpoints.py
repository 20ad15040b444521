"""The row of the judge models' endpoints: how much they are asked, how they answer, what has to be asked again."""

from grafana_foundation_sdk.models.dashboard import Panel

from deploy.dashboards.links import runbooks
from deploy.dashboards.panels import Bound, graph, states
from deploy.dashboards.queries import Query, legend, per, share
from deploy.dashboards.variables import MODEL
from deploy.generators.table import Table

__all__ = ["endpoints"]

_MODEL = ["judge_model"]


def endpoints(table: Table) -> list[Panel]:
    """Make them."""
    return [_in_flight(), _circuits(table), _duration(table), _statuses(), _retries()]


def _in_flight() -> Panel:
    return graph(
        "Requests under way, and their limit",
        "Requests to each judge model at once, of all workers together. The limit adapts: it falls when the endpoint "
        "asks for fewer, so one that stays low is a rate limit.",
        Query(per(_MODEL, f"tracejudge_judge_in_flight{{{MODEL}}}"), legend("judge_model", after=" under way")),
        Query(per(_MODEL, f"tracejudge_judge_concurrency_limit{{{MODEL}}}"), legend("judge_model", after=" limit")),
        unit="short",
        decimals=0,
        least=0,
        no_data="No judge model is seen",
        size=(12, 8),
    )


def _circuits(table: Table) -> Panel:
    return states(
        "Circuits",
        "When each judge model was asked, and when it failed and was left alone.",
        Query(per(_MODEL, f"tracejudge_judge_circuit_open{{{MODEL}}}", "max"), legend("judge_model")),
        {0: ("asked", "green"), 1: ("left alone", "red")},
        unit="none",
        no_data="No judge model is seen",
        runbooks=runbooks(table, "TraceJudgeJudgeCircuitOpen"),
        size=(12, 8),
    )


def _duration(table: Table) -> Panel:
    watch = table.watcher.judge_slow
    recorded = f"tracejudge:judge_request_seconds_p{{}}:{watch.window}{{{{{MODEL}}}}}"
    return graph(
        "How long requests take",
        f"Half of the requests of the last {watch.window} took less than p50, one in twenty longer than p95; an alert "
        "fires where p95 passes the dashed line.",
        Query(recorded.format(95), legend("judge_model", after=" p95")),
        Query(recorded.format(50), legend("judge_model", after=" p50")),
        unit="s",
        decimals=1,
        least=0,
        bounds=[Bound(watch.bound, "red")],
        no_data="No requests in this time range",
        runbooks=runbooks(table, "TraceJudgeJudgeSlow"),
    )


def _statuses() -> Panel:
    ended = f"rate(tracejudge_judge_request_duration_seconds_count{{{MODEL}}}[$__rate_interval])"
    return graph(
        "How requests ended",
        "Requests a second by judge model and status: ok, or the reason why there was no answer, as in "
        "docs/reference/verdicts.md.",
        Query(per([*_MODEL, "status"], ended), legend("judge_model", "status", between=": ")),
        stacked=True,
        unit="reqps",
        decimals=2,
        no_data="No requests in this time range",
    )


def _retries() -> Panel:
    counter = f'tracejudge_judge_request_duration_seconds_count{{{MODEL}, status!="cancelled"}}'
    evaluations = per(_MODEL, f"tracejudge:evaluations:1h{{{MODEL}}}")
    return graph(
        "Requests for one evaluation",
        "Requests of the last hour for each evaluation that ended in it. Judges that ask one question are at 1; what "
        "is above is asked again, or a judge of several questions.",
        Query(share(per(_MODEL, f"increase({counter}[1h])"), evaluations), legend("judge_model")),
        unit="none",
        decimals=2,
        least=0,
        no_data="No evaluations in this time range",
    )
