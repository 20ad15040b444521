"""Votes of panels and of several askings: what they are worth, and how report and board show it."""

import json
import math
import random
import re
from collections import Counter
from typing import Any

import httpx
import pytest
from support.board_parts import serving
from support.processes import wait_until
from support.report_parts import DAY_S, NOW, publish, verdict
from support.stage_parts import Keyspace

from judges.agreement.votes import effective_votes
from judges.core.verdict import Score, Verdict
from worker.features.report.figures import Period, Scope, encode, make_report
from worker.features.report.sources import read_redis
from worker.features.report.text import as_text


def drawn(chance: random.Random, traces: int, number: int, share: float, same: float) -> Counter[str]:
    """Draw votes of correlation ``same``: each is with this probability's root that of a common vote."""
    counts: Counter[str] = Counter()
    for _ in range(traces):
        common = chance.random() < share
        each = [common if chance.random() < math.sqrt(same) else chance.random() < share for _ in range(number)]
        counts["".join(str(int(vote)) for vote in each)] += 1
    return counts


def test_effective_votes_are_those_of_the_formula() -> None:
    # Two members that agree on 80 of 100 traces, and pass half of them, have a correlation of .6. A member that always
    # passes tells of none.
    cases: list[tuple[dict[str, int], float | None]] = [
        ({"11": 40, "00": 40, "10": 10, "01": 10}, 2 / 1.6),
        ({"111": 20, "000": 20}, 1.0),
        ({"111": 30, "001": 30}, 1.0),
        ({"10": 20, "01": 20}, 2.0),
        *[(unknown, None) for unknown in ({}, {"11": 20, "00": 9}, {"111": 900}, {"0": 90, "1": 9}, {"10": 90})],
    ]
    for traces, expected in cases:
        votes = effective_votes(traces)
        assert (votes and votes.value) == pytest.approx(expected), traces
        assert votes is None or votes.low <= votes.value <= votes.high > 1.04, "few traces do not make it certain"


@pytest.mark.parametrize(("number", "share", "same"), [(2, 0.8, 0.3), (3, 0.9, 0.5), (5, 0.7, 0.1), (3, 0.5, 0.9)])
def test_the_interval_covers_the_truth(number: int, share: float, same: float) -> None:
    chance, truth = random.Random(39), number / (1 + (number - 1) * same)
    for traces in (60, 400):
        limits = [effective_votes(drawn(chance, traces, number, share, same)) for _ in range(300)]
        covered = [each.low <= truth <= each.high for each in limits if each is not None]
        assert len(covered) > 290
        assert sum(covered) / len(covered) > 0.92, (traces, sum(covered) / len(covered))


def voted(number: int, votes: str, **fields: Any) -> Verdict:
    """Make a verdict by the majority of votes; `-` is an asking without a score."""
    scores = [{} if vote == "-" else {"scores": {"safety": {"value": 1.0, "passed": vote == "1"}}} for vote in votes]
    passed = votes.count("1") > 1
    score = Score("safety", float(passed), passed=passed)
    return verdict(number, NOW - DAY_S, scores=(score,), details={"samples": scores}, **fields)


def test_report_and_board_show_split_votes(keyspace: Keyspace) -> None:
    counts = {"111": 60, "000": 20, "110": 12, "01-": 4, "-0-": 3}
    verdicts = [voted(number, votes) for number, votes in enumerate(Counter(counts).elements())]
    verdicts += [voted(900 + number, "100", origin="replay") for number in range(9)]
    panel = {"models": {"a": {"outcome": "unscored"}, **dict.fromkeys("bc", {"scores": {"safety": {"passed": True}}})}}
    verdicts.append(verdict(990, NOW - DAY_S, judge_model="majority(a,b,c)", details=panel))
    verdicts += [verdict(991, NOW, details={"samples": 7}), verdict(992, NOW, details={"models": [7]})]
    publish(keyspace, verdicts)
    scope = Scope.from_options(Period(NOW - 2 * DAY_S, NOW + 1), None, ("service",), None, (), NOW)
    report = make_report(scope, read_redis(keyspace.store, scope, NOW))
    of_panel, of_samples = sorted(report.votes, key=lambda votes: votes.verdicts)
    assert (of_panel.labels["judge_model"], of_panel.verdicts, of_panel.split.value) == ("majority(a,b,c)", 1, 0.0)
    assert (of_samples.verdicts, of_samples.split.value) == (96, pytest.approx(16 / 96))
    assert of_samples.effective == effective_votes({"111": 60, "000": 20, "110": 12})
    assert of_panel.sentence.endswith("have split votes; effective votes: not known")
    expected = "safety of shop by lexical: 16.7% (10.5% to 25.4%) of 96 verdicts have split votes; effective votes: 1."
    assert expected in as_text(report)
    assert json.loads(encode(report))["votes"][0]["split"] == list(of_samples.split)
    with serving(keyspace.url, keyspace.prefix) as url, httpx.Client(base_url=url, timeout=60) as client:
        page = wait_until(lambda: "/series/" in (text := client.get("/?period=7d").text) and text, what="the rows")
        pages = [client.get(path + "?period=7d").text for path in re.findall(r'"(/series/\w+)"', page)]
    assert [of_samples.sentence in text for text in pages].count(True) == 1
