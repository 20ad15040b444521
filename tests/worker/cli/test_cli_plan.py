"""`tracejudge plan`: alternatives side by side, and what to do where there is nothing to plan from."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from cli_parts import SAMPLES, Run
from msgspec import structs

from worker.report.capacity import BUSY, CONSTANTS, IN_FLIGHT, Capacity, Volume, capacity_of


def test_the_plan_compares_rates_and_models(served: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "TRACEJUDGE_MODELS",
        '{"default": {"provider": "lexical"}, "paid": {"provider": "scripted", "script": "none.jsonl", '
        '"model": "paid", "price": {"input": 1.0, "output": 2.0}}}',
    )
    served("publish", SAMPLES / "summariser.jsonl")
    ended = served("plan", "--json", "--rate", "0.5", "--model", "paid")
    assert (ended.code, ended.err) == (0, "")
    present, halved, paid = ended.document["alternatives"]
    assert [one["name"] for one in (present, halved, paid)] == ["as configured", "rate 0.5", "model paid"]
    assert present["sampled"] == 21
    assert (present["usd"], present["input_tokens"]) == (0.0, 0.0)
    assert halved["judgements"] == pytest.approx(present["judgements"] / 2)
    assert paid["judgements"] == pytest.approx(present["judgements"])
    assert paid["usd"] == pytest.approx((paid["input_tokens"] + 2 * paid["output_tokens"]) / 1e6)
    assert paid["usd"] > 0
    table = served("plan", "--model", "paid")
    assert "Expected work a day, model paid" in table.out
    assert "calls a second" in table.out
    assert "no past verdicts" in table.err


def test_without_traffic_or_with_an_unknown_model_it_says_what_to_do(served: Run) -> None:
    assert "publish traces first" in served("plan").err
    served("publish", SAMPLES / "summariser.jsonl")
    assert "there is no [models.cheap]" in served("plan", "--model", "cheap").err
    assert "--since: write 90" in served("plan", "--since", "soon").err


def test_a_dry_run_of_a_replay_estimates_its_work(served: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    model = '{"provider": "scripted", "script": "none.jsonl", "model": "paid", "price": {"input": 1.0, "output": 2.0}}'
    monkeypatch.setenv("TRACEJUDGE_MODELS", f'{{"default": {model}}}')
    served("publish", SAMPLES / "summariser.jsonl")
    ended = served("replay", "--since", "1h", "--judge", "safety", "--dry-run", "--json")
    expected = ended.document["expected"]
    assert (expected["traces"], expected["judgements"]) == (pytest.approx(21), pytest.approx(21))
    assert expected["usd"] > 0
    table = served("replay", "--since", "1h", "--judge", "safety", "--dry-run")
    assert "Expected work in all, replay" in table.out


def test_a_cascade_is_planned_beside_a_plain_sample_at_the_same_cost(
    served: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    served("publish", SAMPLES / "summariser.jsonl")
    assert served("plan", "--json").document["source"].startswith("traces, taken for a day: the stream retains 0.")
    monkeypatch.setattr("worker.report.workload._LEAST_SPAN_S", 0.0)
    monkeypatch.setenv("TRACEJUDGE_CASCADES", '{"two": {"first": "cheap", "then": "default", "rate": 0.1}}')
    monkeypatch.setenv("TRACEJUDGE_RULES", '[{"name": "all", "judges": ["safety"]}]')
    strong = {"provider": "scripted", "script": "none.jsonl", "model": "strong"}
    cheap = {"provider": "decisions", "dialect": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "cheap"}
    cases = (
        (5.0, "prefer the plain sample unless every trace"),
        (0.01, "the cascade is narrower"),
        (None, None),
    )
    for price, advice in cases:
        # Without the price of the first model nothing is known of the same cost.
        prices = {} if price is None else {"price": {"input": price, "output": price}}
        models = {"default": {**strong, "price": {"input": 10.0, "output": 10.0}}, "cheap": {**cheap, **prices}}
        monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps(models))
        ended = served("plan", "--json", "--cascade", "two")
        assert (ended.code, ended.err) == (0, ""), price
        first, then = ended.document["alternatives"][1]["rows"]
        assert (first["judge_model"], then["judge_model"]) == ("cheap", "strong")
        assert then["judgements"] == pytest.approx(0.1 * first["judgements"], rel=0.02)
        assert then["half_width"] > 0
        notes = ended.document["alternatives"][1]["notes"]
        assert any("sensitivity .85" in text for text in notes), notes
        beside = [text for text in notes if "on a plain sample of" in text]
        assert [advice in text for text in beside] == [True] * (advice is not None), (price, notes)
    # The rate was a tenth, so that this pays for a quarter of all.
    models["default"]["price"] = {"input": 1e-5, "output": 1e-5}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps(models))
    usd = 10 * then["usd"] / 4 / 10**6
    monkeypatch.setenv(
        "TRACEJUDGE_CASCADES", json.dumps({"two": {"first": "cheap", "then": "default", "usd_per_day": usd}})
    )
    ended = served("plan", "--json", "--cascade", "two")
    assert ended.code == 0, ended.err
    _, then = ended.document["alternatives"][1]["rows"]
    assert then["usd"] == pytest.approx(usd, rel=0.02)
    assert then["judgements"] == pytest.approx(first["judgements"] / 4, rel=0.03)
    assert "there is no [cascades.three]" in served("plan", "--cascade", "three").err


def test_the_page_shows_what_the_command_computes(run: Run) -> None:
    """Examples and constants of docs/sizing.md; JSON has the same figures."""
    page = (Path(__file__).parents[3] / "docs" / "sizing.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```console\n\$ tracejudge (plan --capacity .*)\n((?:.*\n)+?)```", page, re.MULTILINE)
    assert len(examples) == 3
    for command, shown in examples:
        ended = run(*command.split())
        assert (ended.code, ended.err, ended.out) == (0, "", shown), command
        (found,) = run(*command.split(), "--json").document
        needed = msgspec.convert(found["capacity"], Capacity)
        assert needed == capacity_of(msgspec.convert(found["volume"], Volume))
        assert f"{needed.workers:,} processes" in shown
        assert f"{needed.usd_per_day:,.2f} USD" in shown
    for constant in CONSTANTS:
        assert f"| {constant.what} | {constant.value:,g} {constant.unit} | {constant.source} |\n" in page


def test_capacity_grows_with_what_is_asked_for() -> None:
    """Each input changes what it should, and the limits of one process and one Redis are kept."""
    volume = Volume(traces_per_second=20_000, rate=0.1, price=(1.0, 4.0), retention_s=600)
    before = capacity_of(volume)
    assert before.usd_per_day == pytest.approx(2_000 * 86_400 * (1_500 + 4 * 150) / 1e6)
    assert before.worker_cores / before.workers <= BUSY
    assert before.redis_cores / before.shards <= BUSY
    assert before.calls_in_flight / before.workers <= IN_FLIGHT.value
    for change, grows in {
        "rate": ({"rate": 0.2}, {"worker_cores", "redis_cores", "calls_in_flight", "usd_per_day", "redis_memory_gb"}),
        "judges": ({"judges": 2}, {"worker_cores", "redis_cores", "calls_in_flight", "usd_per_day"}),
        "seconds": ({"seconds_per_call": 20.0}, {"calls_in_flight", "workers"}),
        "tokens": ({"tokens": (3_000, 150)}, {"usd_per_day"}),
        "bytes": ({"trace_bytes": 40_000}, {"worker_cores", "redis_memory_gb", "network_mb_per_second", "shards"}),
        "retention": ({"retention_s": 6_000.0}, {"redis_memory_gb", "shards"}),
        "gateway": ({"gateway_spans": 5.0}, {"gateway_cores", "gateways"}),
        "small Redis": ({"redis_gb": 8.0}, {"shards"}),
    }.values():
        after = capacity_of(structs.replace(volume, **change))
        larger = {name for name in structs.asdict(after) if getattr(after, name) > getattr(before, name)}
        assert grows <= larger, change
        assert after.shards_for_cpu <= after.shards, change
        assert after.max_in_flight * (after.workers - 1) >= after.calls_in_flight, "enough with one process less"
        assert after.max_in_flight <= IN_FLIGHT.value, change
    assert capacity_of(Volume(traces_per_second=1.0)).workers == 2


def test_capacity_says_what_memory_costs(run: Run) -> None:
    """The default retention of a large volume needs many servers; the answer names the options that change it."""
    large = ("plan", "--capacity", "--traces-per-second", "10000", "--rate", "0.01")
    assert "CPU does (1): a --retention below 24 h or" in run(*large).out
    for fewer in (("--retention", "90"), ("--redis-gb", "10000")):
        assert "needs fewer" not in run(*large, *fewer).out, fewer
    huge = ("plan", "--capacity", "--traces-per-second", "1000000")
    assert "at most 64 shards: divide" in run(*huge, "--rate", "0.001", "--retention", "1h").out
    assert "reads about 30,000 verdicts a second: divide" in run(*huge, "--rate", "0.05", "--retention", "60").out
    assert "kept for 90 s; 1 % are judged" in run(*large, "--retention", "90").out


def test_options_of_capacity_are_refused_without_it_and_incomplete(run: Run) -> None:
    for given, said in {
        ("--capacity",): "--capacity needs --traces-per-second",
        ("--capacity", "--traces-per-second", "5", "--since", "1h"): "has no --since",
        ("--traces-per-second", "5"): "--traces-per-second goes with --capacity",
        ("--capacity", "--traces-per-second", "5", "--retention", "soon"): "--retention: write 90",
        ("--capacity", "--traces-per-second", "5", "--retention", "2026-01-01"): "--retention: write how long",
        ("--capacity", "--traces-per-second", "5", "--retention", "0"): "--retention: write how long",
    }.items():
        ended = run("plan", *given)
        assert (ended.code, said in " ".join(ended.err.split())) == (2, True), ended.err
