"""Judging by a real endpoint over HTTP: concurrency, the reason of each failure, proxies, odd replies and messages."""

import base64
import json
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from support import replies
from support.endpoint import ChatEndpoint
from support.otlp import OtlpReceiver
from support.pipeline import Pipeline, make_traces, model_at
from support.processes import free_port, wait_until

GROUNDED = [{"name": "grounded", "judges": ["groundedness"]}]
SAID = "Project proj_1 may not use this model"
NOBODY = "http://judge.example"  # a host that only the proxy can resolve
UNREADABLE = (
    (replies.answers("I think it is fine."), "invalid_answer", 2),
    (replies.answers(""), "invalid_answer", 1),
    (replies.answers_json({"rationale": "x", "result": "maybe"}), "out_of_range", 2),
    (replies.refuses("I cannot do that."), "refusal", 1),
    (replies.truncated('{"rationale": "x"'), "truncated", 2),
    (replies.filtered(""), "content_filter", 1),
    (replies.failing(400, "not taken: Parcel 7 holds word0 word1 word2 word3 word4"), "bad_request", 1),
)
"""Replies, the reason that each is, and the calls of its evaluation."""


def test_an_invalid_answer_is_unscored_with_its_reason_not_zero(pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
    """Tokens and cost of valid ones are counted, and a trace that is too long causes no call."""
    usual = replies.yes_no(usage=replies.Usage(prompt_tokens=1000, completion_tokens=100))
    settings = {"price": {"input": 2.0, "output": 10.0}, "max_input_tokens": 2000}
    worker = pipeline.worker(rules=GROUNDED, models={"default": model_at(endpoint.base_url, **settings)})
    rows = dict(enumerate(UNREADABLE, 10))

    def number_of(call: replies.Call) -> int:
        return int(re.search(r"Parcel (\d+) holds", call.text())[1])

    endpoint.behaviour = lambda call: rows.get(number_of(call), (usual,))[0]
    pipeline.publish([*make_traces(1, first=90, context=["word " * 4000]), *make_traces(10 + len(rows))])
    account = pipeline.settled(11 + len(rows))
    reasons = Counter(reason for _, reason, _ in UNREADABLE) + Counter(["input_too_long"])
    assert (account.unscored, account.scored, account.lost) == (reasons.total(), 10, 0)
    assert account.reasons == {f"unscored:{reason}": count for reason, count in reasons.items()}
    calls = Counter(map(number_of, endpoint.calls))
    assert calls == {**dict.fromkeys(range(10), 1), **{number: count for number, (_, _, count) in rows.items()}}
    page = worker.counted(account.unscored + account.scored)
    for reason, count in reasons.items():
        assert page.value("tracejudge_unscored_total", reason=reason) == count
    assert page.value("tracejudge_verdicts_total", outcome="pass") == 10
    assert page.value("tracejudge_verdicts_total", outcome="unscored") == account.unscored
    assert page.total("tracejudge_judge_tokens_total", direction="input", judge_model="judge-1") >= 10_000
    scored = [entry.verdict for entry in pipeline.outbox() if entry.verdict.outcome == "scored"]
    assert {(each.input_tokens, each.output_tokens, each.cost_usd) for each in scored} == {(1000, 100, 0.003)}
    assert "holds word0 word1" not in worker.program.output, "the log quotes the trace"


@pytest.mark.slow("workers behind a proxy")
def test_judge_calls_doctor_and_otlp_use_the_proxy(
    pipeline: Pipeline, endpoint: ChatEndpoint, otlp: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endpoint and receiver are proxies themselves: they answer whatever host a request names."""
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    through = f"http://user:s3cret-word@127.0.0.1:{endpoint.port}"
    settings = {"models": {"default": model_at(f"{NOBODY}/v1")}, "rules": GROUNDED, "proxy": through}
    worker = pipeline.worker(**settings)
    pipeline.publish(make_traces(20))
    assert pipeline.settled(20).scored == 20
    assert "s3cret" not in worker.program.output
    doctor = pipeline.command("doctor", "--ask", code=1, **settings)
    parts = {part["name"]: part for part in doctor["parts"]}
    assert parts["answer of default"]["result"] == "ok", parts
    basic = f"Basic {base64.b64encode(b'user:s3cret-word').decode()}"
    named = {(call.headers["host"], call.headers["proxy-authorization"]) for call in endpoint.calls}
    assert (named, len(endpoint.calls) > 20) == ({("judge.example", basic)}, True)
    worker.program.terminate()
    # That of the environment, too; hosts of NO_PROXY are reached directly.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HTTP_PROXY", otlp.root_url)
    settings = {"models": {"default": model_at(endpoint.base_url)}, "otlp_endpoint": "http://otlp.example"}
    pipeline.worker(rules=GROUNDED, **settings)
    pipeline.publish(make_traces(5, first=20))
    assert pipeline.settled(25).scored == 25
    wait_until(lambda: any(span.name.startswith("evaluate") for span in otlp.spans), what="spans to arrive")
    assert {export.headers["host"] for export in otlp.exports} == {"otlp.example"}


@pytest.mark.slow("four programs one after the other")
def test_error_messages_of_the_endpoint_are_shown(pipeline: Pipeline, endpoint: ChatEndpoint, tmp_path: Path) -> None:
    """In `dead show`, in `evaluate` with the address, and in `doctor`; a web page is no chat endpoint."""
    quotes = f"{SAID}: Parcel 0 holds word0 word1 word2 word3"
    endpoint.behaviour = replies.failing(404, quotes)
    settings = {"rules": GROUNDED, "models": {"default": model_at(endpoint.base_url)}}
    worker = pipeline.worker(**settings, give_up_after=2, log_level="info")
    pipeline.publish(make_traces(1))
    assert pipeline.settled(1).dead == 1
    assert SAID in worker.program.stderr
    (dead_id,) = pipeline.store.call(lambda client: [raw.decode() for raw in client.hkeys(pipeline.keys.dead)])
    show = pipeline.program("dead", "show", dead_id)
    trace = tmp_path / "traces.jsonl"
    trace.write_bytes(msgspec.json.encode(make_traces(1)[0]))
    evaluate = pipeline.program("evaluate", str(trace), "--judge", "groundedness", "--tries", "1", **settings)
    doctor = pipeline.program("doctor", "--ask", **settings)
    for program in (show, evaluate, doctor):
        program.wait()
        assert SAID in " ".join(program.output.split()), program.output
    assert "word1" not in show.output + evaluate.output, "what is quoted of a trace is taken out"
    assert f"127.0.0.1:{endpoint.port}" in evaluate.output
    assert "word1" not in worker.program.output
    endpoint.behaviour = replies.not_json()
    pipeline.publish(make_traces(1, first=1))
    assert pipeline.settled(2).dead == 2
    written = pipeline.store.call(lambda client: client.hvals(pipeline.keys.dead))
    assert any("not a chat endpoint, it answers with text/html" in json.loads(letter)["note"] for letter in written)
