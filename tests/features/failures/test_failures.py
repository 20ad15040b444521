"""Themes of failing verdicts, by words and by a model; edges of the judges of agents, and of what both hand out."""

import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from support.board import serving
from support.commands import Run
from support.endpoint import ChatEndpoint
from support.fixtures import newest_redis
from support.processes import wait_until
from support.replies import Call, Reply, answers_json
from support.replies import failing as failing_reply
from support.stages import Keyspace, make_verdict, settings_of
from support.tables import read_table

from judges.agent.transcript import arguments_of, transcript
from judges.agreement.effective_votes import effective_votes
from judges.calling.evaluation import evaluate
from judges.calling.samples import join_samples
from judges.catalog.step_efficiency import repeats
from judges.catalog.tool_arguments import breaches
from judges.core.judge import Metric
from judges.core.model import ChatRequest, HeaderSource, ModelError, ModelSettings, Price
from judges.core.prompt import Block, Message, Prompt
from judges.core.verdict import Assessment, Score, Verdict
from judges.models.provider import ModelSettingsError
from judges.models.registry import build, check
from judges.registry import catalogue
from judges.requests.request import count_left_out
from tracejudge import Span, Tool, ToolCall, Trace
from tracejudge.content.convert import Notes, convert_trace
from tracejudge.dialects.messages import conversation
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.core.config.loading import load
from worker.core.config.settings import Redact, Settings, SettingsError
from worker.core.storage.client import Store
from worker.features.failures.feature import Failures, FailuresKeys
from worker.features.failures.themes import Themes, find_themes, group, read_failures

any_redis_server = newest_redis

HOUR_MS = 3_600_000
PLANTED = read_table(__file__, "planted")
CAUSES: Mapping[str, dict[str, Any]] = PLANTED["causes"]
THINGS: list[str] = PLANTED["things"]
NAMES = {cause: fields["name"] for cause, fields in CAUSES.items()}


def cause_of(text: str) -> str:
    for name, fields in CAUSES.items():
        for pattern in map(re.escape, fields["texts"]):
            if re.fullmatch(pattern.replace(r"\{thing\}", r"\w+").replace(r"\{n\}", r"\d+"), text):
                return name
    raise AssertionError(text)


def failing(number: int, text: str, **fields: Any) -> Verdict:
    score = Score("safety", 0.0, passed=False, rationale=text)
    ids = {"evaluation_id": f"e{number}", "trace_id": f"{number:032x}"}
    return make_verdict(number, outcome="scored", scores=(score,), **ids, **fields)


def planted(seed: int, count: int = 300, shares: Mapping[str, float] = {}) -> list[Verdict]:
    """Failures of the four causes, with these shares of the weight."""
    chance, verdicts = random.Random(seed), list[Verdict]()
    for name, cause in CAUSES.items():
        for _ in range(round(count * shares.get(name, cause["share"]))):
            text = chance.choice(cause["texts"]).format(thing=chance.choice(THINGS), n=chance.randint(2, 900))
            fields = {"weight": 2.0, "probability": 0.5, "session_id": chance.choice([None, f"s{chance.random()}"])}
            verdicts.append(failing(1_000 * seed + len(verdicts), text, **fields))
    chance.shuffle(verdicts)
    return verdicts


def write(keyspace: Keyspace, verdicts: list[Verdict], at_ms: int) -> None:
    with keyspace.client.pipeline(transaction=False) as pipe:
        for number, verdict in enumerate(verdicts):
            fields = {"v": 1, "j": msgspec.json.encode(verdict)}
            pipe.xadd(keyspace.keys.verdicts, fields, id=f"{at_ms}-{number + 1}")
        pipe.execute()


@pytest.fixture
def hour_ms(monkeypatch: pytest.MonkeyPatch) -> int:
    """The begin of this hour, at which the clock of the store stands still."""
    begin = int(time.time() * 1000) // HOUR_MS * HOUR_MS
    monkeypatch.setattr(Store, "now_ms", lambda _store: begin)
    return begin


@pytest.fixture
def mix(keyspace: Keyspace, hour_ms: int) -> Keyspace:
    """Two windows of failures, of which the first had fewer outdated prices; and verdicts that are none of them."""
    write(keyspace, planted(1, 200, {"price": 0.2, "source": 0.5}), hour_ms - 30 * HOUR_MS)
    others = [
        failing(9_001, "A repeat of an outdated price.", origin="repeat"),
        make_verdict(9_002, outcome="scored", scores=(Score("safety", 1.0, passed=True, rationale="A price list."),)),
        make_verdict(9_003),
    ]
    write(keyspace, [*planted(2), *others], hour_ms - 2 * HOUR_MS)
    return keyspace


def settings_with(
    keyspace: Keyspace, endpoint: ChatEndpoint | None = None, budget: float = 1.0, **more: Any
) -> Settings:
    own = {}
    if endpoint is not None:
        model = ModelSettings(base_url=endpoint.base_url, model="writer", price=Price(input=1.0, output=4.0))
        own = {"models": {"writer": model}, "failures": Failures(model="writer", budget=budget)}
    return settings_of(keyspace, export_explanations=True, **own, **more)


@pytest.mark.slow("a process for each hash seed")
def test_the_same_input_gives_the_same_themes_in_every_process(mix: Keyspace, hour_ms: int) -> None:
    """Python orders sets of texts by hashes that differ from process to process."""
    script = (
        "import sys; from worker.features.failures.themes import *\n"
        "rows = msgspec.json.decode(sys.stdin.buffer.read(), type=list[list[Failure]])\n"
        "sys.stdout.buffer.write(msgspec.json.encode(group(*rows, shows_texts=True)))"
    )
    until = hour_ms / 1000
    rows = [read_failures(mix.store, Settings(), at, 24, VerdictFilter()) for at in (until, until - 86_400)]
    here, sent = msgspec.json.encode(group(*rows, shows_texts=True)), msgspec.json.encode(rows)
    # Another order of sets than here, whose seed is drawn, if not one of 4 billion.
    seed = {"PYTHONHASHSEED": "1"}
    there = subprocess.run([sys.executable, "-c", script], env=seed, input=sent, stdout=subprocess.PIPE, check=True)
    assert there.stdout == here
    assert len(json.loads(here)) == 4


def grouping(call: Call) -> Reply:
    """Group the shown documents as a good model does, in the form of an answer; the last of them it leaves out."""
    shown = re.findall(r"<<context (\d+) \w+>>\n(.+)\n", call.text())
    numbers: dict[str, list[str]] = {}
    for number, text in shown[:-1]:
        numbers.setdefault(cause_of(text), []).append(number)
    themes = [f"{NAMES[cause]}: {', '.join(each)}, 999" for cause, each in numbers.items()]
    return answers_json({"rationale": "Read.", "result": themes})


@pytest.fixture
def endpoint() -> Iterator[ChatEndpoint]:
    with ChatEndpoint(grouping) as endpoint:
        yield endpoint


def test_a_model_is_asked_once_an_hour_and_everybody_sees_its_themes(
    mix: Keyspace, endpoint: ChatEndpoint, hour_ms: int
) -> None:
    settings = settings_with(mix, endpoint)
    unasked = find_themes(mix.store, settings, writes=False)
    assert (unasked.by, endpoint.calls) == ("words", ())
    first = find_themes(mix.store, settings)
    check_mix(first, set(NAMES.values()))
    assert re.fullmatch(r"writer for 0\.\d{4} USD", first.by)
    for again in (find_themes(mix.store, settings), find_themes(mix.store, settings, writes=False)):
        assert again == first
    filtered = find_themes(mix.store, settings, VerdictFilter(judges=("safety",)))
    assert filtered == first
    (call,) = endpoint.calls
    assert call.body["temperature"] == 0
    # No text of a trace is kept: neither a reason nor a part of one.
    kept = str(mix.client.hgetall(FailuresKeys(mix.prefix).failures(hour_ms // HOUR_MS // 24)))
    assert NAMES["price"] in kept
    assert not [thing for thing in THINGS if thing in kept]
    # Another window is grouped by words, and asks nobody.
    assert find_themes(mix.store, settings, hours=48).by == "words"
    assert len(endpoint.calls) == 1


def check_mix(found: Themes, names: set[str]) -> None:
    """Check that each cause is one theme, with its planted share in the interval, and the change since before."""
    assert (found.failures, found.before) == (300, 200)
    causes = {}
    for theme in found.themes:
        (cause,) = {cause_of(example.text) for example in theme.examples}
        assert cause not in causes, (cause, theme.name, causes[cause].name)
        causes[cause] = theme
        share = CAUSES[cause]["share"]
        assert theme.share.low <= share <= theme.share.high, (cause, theme.share)
        assert abs(theme.count - 300 * share) <= 6, (cause, theme.count)
        assert len({example.trace_id for example in theme.examples}) == 3, cause
    assert causes.keys() == CAUSES.keys()
    changed = {cause: theme.change for cause, theme in causes.items() if theme.change is not None}
    assert changed["price"].low > 0 > changed["source"].high
    assert changed["language"].low < 0 < changed["language"].high
    assert not names or {theme.name for theme in found.themes} == names


@pytest.mark.slow("hundreds of traces")
def test_a_planted_mix_is_found_by_words_and_texts_are_shown_only_if_that_is_allowed(
    mix: Keyspace, served: Run
) -> None:
    found = find_themes(mix.store, settings_with(mix))
    check_mix(found, set())
    hidden = served("failures", "--hours", "24")
    assert hidden.code == 0, hidden
    assert "300 failing verdicts in 24 hours, 200 before" in hidden.out
    texts = {failure.text for theme in found.themes for failure in theme.examples}
    assert not [text for text in texts if text[:60] in hidden.out]
    redacted = find_themes(mix.store, settings_with(mix, redact=Redact(patterns=["German"])))
    assert len(redacted.themes) == 4
    assert "German" not in msgspec.json.encode(redacted).decode()
    with serving(mix.url, mix.prefix) as url:
        page = wait_until(lambda: "What fails alike" in (text := httpx.get(url).text) and text, what="the card")
    assert "Share of 300 failing verdicts" in page
    assert [f">theme {rank}<" in page for rank in range(1, 6)] == [True] * 4 + [False]
    assert "outdated" not in page
    assert Counter(re.findall(r'href="/verdicts/(e\w+)"', page)).total() == 12


def test_nothing_is_made_of_nothing(keyspace: Keyspace, served: Run) -> None:
    """One failure shares nothing, equal ones all, and reasons without words nothing."""
    ended = served("failures")
    assert (ended.code, ended.out) == (1, ""), ended
    assert "no verdict of these 24 hours fails" in ended.err
    now_ms = int(time.time() * 1000) - 60_000
    write(keyspace, [failing(1, "Alone.")], now_ms)
    assert find_themes(keyspace.store, settings_with(keyspace)).themes == []
    write(keyspace, [failing(number, "The answer is empty.") for number in range(2, 6)], now_ms + 1)
    (theme,) = find_themes(keyspace.store, settings_with(keyspace)).themes
    assert (theme.count, theme.share.value, theme.change) == (4, 0.8, None)
    write(keyspace, [failing(number, "12, 13!") for number in range(6, 12)], now_ms + 2)
    document = served("failures", "--json").document
    assert [theme["count"] for theme in document["themes"]] == [6, 4]
    assert document["before"] == 0


MATCH = catalogue()["trajectory_match"]
AGENTS = read_table(__file__, "agents")


def test_failures_have_no_model_that_a_rule_keeps_traces_from(tmp_path: Path) -> None:
    models = "".join(f"[models.{name}]\nprovider = 'lexical'\n" for name in ("own", "other"))
    for egress, is_allowed in (("", True), ("['own']", False), ("['own', 'other']", True)):
        limit = f"egress = {egress}\n" if egress else ""
        path = tmp_path / "tracejudge.toml"
        rule = f"[[rules]]\nname = 'all'\njudges = ['safety']\nmodel = 'own'\n{limit}"
        path.write_text(f"{rule}{models}[failures]\nmodel = 'other'\n")
        if is_allowed:
            load({}, str(path))
        else:
            with pytest.raises(SettingsError, match=r"failures.model: rules\[0\].egress keeps 'other' out; add it"):
                load({}, str(path))


def test_no_message_has_a_header_from_elsewhere_and_literal_ones_hold_no_secret() -> None:
    values = {"A": "Token s3cr3t-1234", "B": "Basic dXNlcjpwYXNz", "C": "one two-of-it-1 three-of-it"}
    headers = {"x-a": HeaderSource(env="A"), "authorization": HeaderSource(env="B"), "x-c": HeaderSource(env="C")}

    async def ask(echo: str) -> str:
        server.behaviour = failing_reply(403, echo)
        own: dict[str, Any] = {"x-team": "search team", **headers}
        model = build(ModelSettings(base_url=server.base_url, model="m", headers=own), values)
        with pytest.raises(ModelError) as caught:
            await model.complete(ChatRequest((Message("user", "q"),), schema_name="", schema={}, heuristic=dict))
        await model.aclose()
        return caught.value.message

    with ChatEndpoint() as server:
        for value in values.values():
            whole, *parts = value, *value.split()[1:]
            assert asyncio.run(ask(f"I see {whole}.")) == "I see [key]."
            assert asyncio.run(ask(f"No {' nor '.join(parts)}")) == f"No {' nor '.join('[key]' for _ in parts)}"
        assert asyncio.run(ask("the search team may not")) == "the search team may not"
    for name in ("cookie", "x-session-token", "X-Credential", "x-client-secret", "x-my-key", "x-auth"):
        with pytest.raises(ModelSettingsError, match="holds a secret; name its place"):
            check(ModelSettings(base_url="http://h/v1", model="m", headers={name: "abc"}))


def test_a_model_that_fails_or_is_too_dear_leaves_the_words(
    keyspace: Keyspace, endpoint: ChatEndpoint, hour_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six failures of two causes, of the hour before this one."""
    texts = "The price list is outdated here: ", "The cited source was invented there: "
    six = [failing(number, f"{texts[number % 2]}{'abcdef'[number] * 5}") for number in range(6)]
    write(keyspace, six, hour_ms - 60_000)
    key = FailuresKeys(keyspace.prefix).failures(hour_ms // HOUR_MS // 24)
    cases: Mapping[str, tuple[Any, float, int, str]] = {
        "too dear": (grouping, 1e-6, 0, "over_budget"),
        "unreadable": (answers_json({"themes": "none"}), 1.0, 2, "invalid_answer"),
        "no numbers": (answers_json({"rationale": "So.", "result": ["prices", "sources:"]}), 1.0, 1, "none"),
        "fails": (Reply(status=500), 1.0, 2, "judge_unavailable"),
    }
    for name, (behaviour, budget, calls, why) in cases.items():
        endpoint.forget()
        keyspace.client.delete(key)
        endpoint.behaviour = behaviour
        found = find_themes(keyspace.store, settings_with(keyspace, endpoint, budget))
        assert (found.by, len(found.themes)) == (f"words; the model gave no themes: {why}", 2), name
        assert find_themes(keyspace.store, settings_with(keyspace, endpoint, budget)) == found, name
        assert len(endpoint.calls) == calls, name
    keyspace.client.delete(key)
    # Without explanations the words of reasons are no names.
    assert {theme.name for theme in find_themes(keyspace.store, settings_of(keyspace)).themes} == {"theme 1", "theme 2"}
    settings = settings_with(keyspace, endpoint)
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    (writer,) = settings.models.values()
    keyless = msgspec.structs.replace(
        settings, models={"writer": msgspec.structs.replace(writer, api_key_env="NO_SUCH_KEY")}
    )
    found = find_themes(keyspace.store, keyless)
    assert found.by.startswith("words; the model cannot be asked: api_key_env: the variable NO_SUCH_KEY is not set")
    assert "price" in str([theme.name for theme in found.themes])
    assert keyspace.client.hgetall(key) == {}, "neither the hour is taken nor a cost booked"
    answer = msgspec.json.encode(("writer", {"a theme": ["0123456789abcdef", "0123456789abcdee"]}))
    keyspace.client.hset(key, mapping={str(int(found.until // 3_600)): "asked", "asked": answer})
    found = find_themes(keyspace.store, settings)
    assert (found.by, len(found.themes)) == ("words; the model's themes are of other verdicts", 2)


def made(*calls: ToolCall, **fields: Any) -> Trace:
    return Trace(trace_id="1", service="s", output="o", tool_calls=[*calls], **fields)


def test_calls_without_arguments_and_other_edges_of_agents_are_judged() -> None:
    for called, wanted, mode, figures in AGENTS["matches"]:
        calls, expected = ([ToolCall("now", arguments) for arguments in each] for each in (called, wanted))
        judge = MATCH.make(msgspec.convert({"mode": mode}, type(MATCH.settings)))
        scores = asyncio.run(evaluate(judge, made(*calls, expected_tools=expected), None)).scores
        assert [scores[0].passed, *(score.value for score in scores[1:])] == figures, (called, wanted, mode)
    now = ToolCall("now", "")
    for trace in (made(now), Trace(trace_id="1", service="s", output="o", expected_tools=[now])):
        assert asyncio.run(evaluate(MATCH, trace, None)).reason == "missing_input"
    fields = convert_trace({"input": "q", "output": "o", "tool_calls": [], "expected_tools": ["now"]}, Notes())
    trace = msgspec.convert({"trace_id": "1", "service": "s", **fields}, Trace)
    assert asyncio.run(evaluate(MATCH, trace, None)).scores[0].passed is False
    # No arguments are an empty object, and forms of other drafts are no breach.
    for name, arguments, count in AGENTS["breaches"]:
        trace = made(ToolCall("t", arguments), tools=[Tool("t", None, AGENTS["arguments"][name])])
        assert len(breaches(trace, transcript(trace))) == count, (name, arguments)
    # Reading verbs are whole words, and a new result is no repeat.
    read = ToolCall("read", {"a": 1}, "x")
    cases = [(name, (read, ToolCall(name, {}, "r"), read), count) for name, count in AGENTS["reading names"].items()]
    for first, second, count in AGENTS["results"]:
        cases.append((f"{first} {second}", tuple(ToolCall("read", {"a": 1}, each) for each in (first, second)), count))
    cases.append(("timeout", (read, ToolCall("read", {"a": 1}, error="timeout")), 0))
    for name, several, count in cases:
        assert len(repeats(transcript(made(*several)))) == count, name


def test_parallel_calls_have_the_spans_with_their_arguments_and_whole_names() -> None:
    inputs = (("find", '{"q": "b"}'), ("find", {"q": "a"}), ("find_all", {}))
    spans = [
        Span(f"{number}", name, kind="tool", inputs=each, started_at=number, ended_at=number + 0.5)  # type: ignore[arg-type]
        for number, (name, each) in enumerate(inputs, 1)
    ]
    steps = transcript(made(*(ToolCall("find", {"q": name}) for name in "abc"), spans=spans)).steps
    assert [(step.kind, arguments_of(step), step.span_id) for step in steps] == [
        ("tool", {"q": "b"}, "1"),
        ("tool", {"q": "a"}, "2"),
        ("other", {}, "3"),
        ("tool", {"q": "c"}, None),
    ]


def test_few_answers_are_unscored_and_votes_of_another_number_are_ignored() -> None:
    kinds = {
        "scored": Assessment("scored", scores=(Score("m", 1.0, 1.0, passed=True),)),
        "abstained": Assessment("abstained"),
        "unscored": Assessment("unscored", "timeout"),
    }
    for number in range(2, 7):
        for chosen in combinations_with_replacement(kinds, number):
            joined = join_samples([kinds[kind] for kind in chosen], [Metric("m", "0 or 1", "yes")])
            if 2 * (number - chosen.count("unscored")) < number:
                assert (joined.outcome, joined.reason) == ("unscored", "timeout"), chosen
    two = {"11": 40, "00": 40, "10": 10, "01": 10}
    for others in ({"1": 9}, {"101": 5, "110": 4}, {"1": 60, "0111": 30}):
        assert effective_votes({**others, **two}) == effective_votes({**two, **others}) == effective_votes(two), others
    assert effective_votes({"111": 20, "10": 10, "01": 19}) is None


def test_each_image_of_a_part_leaves_a_mark_and_counts() -> None:
    source = {"bytes": "aGk=" * 1_000}
    parts = [
        {"text": "Look"},
        {"image": {"format": "png", "source": source}},
        {"image": {"format": "png", "source": {"s3Location": {"uri": "s3://b/k"}}}},
        {"document": {"format": "pdf", "name": "report", "source": source}},
    ]
    for messages in ([{"role": "user", "content": parts}], {"messages": [{"role": "user", "content": parts}]}):
        (chat,) = conversation(messages) or ()
        assert chat.text == "Look\n[image 3 kB]\n[image]\n[file 3 kB]", messages
    image, other = Block("request", "[image]"), Block("answer", "[image]")
    trace = Trace(trace_id="1", service="s", input="[image]", output="[image]")
    texts = tuple(Message("user", text) for text in ("[image]", "[image]"))
    for prompts, count in (
        ([Prompt("", (image, other))], 2),
        ([Prompt("", (image, other)), Prompt("", (image,))], 2),
        ([Prompt("", (), messages=texts)], 2),
        ([Prompt("", ())], 2),
    ):
        assert count_left_out(trace, prompts, passes=False) == count, prompts
