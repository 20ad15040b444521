"""Themes of failing verdicts: a planted mix is found, by words and by a model, and everybody sees the same."""

import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import msgspec
import pytest
from support.board_parts import serving
from support.cli_parts import Run
from support.endpoint import ChatEndpoint
from support.replies import Call, Reply, answers_json
from support.stage_parts import Keyspace, make_verdict, settings_of

from judges.core.model import ModelSettings, Price
from judges.core.verdict import Score, Verdict
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.core.config.settings import Redact, Settings
from worker.features.failures.feature import Failures, FailuresKeys
from worker.features.failures.themes import Themes, find_themes

HOUR_MS = 3_600_000
CAUSES: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "price": (
        0.4,
        (
            "The price of {thing} in the answer is outdated: the price list of this month says {n} euros.",
            "It quotes an outdated price for {thing}. The current price list has {n} euros.",
            "Outdated price: {thing} costs {n} euros according to the price list, and the answer says otherwise.",
        ),
    ),
    "source": (
        0.3,
        (
            "The answer cites a source on {thing} that does not exist; no retrieved document has this citation.",
            "The cited source for {thing} is invented: it is not among the {n} retrieved documents.",
            "An invented citation: none of the retrieved documents is the source that is cited for {thing}.",
        ),
    ),
    "language": (
        0.2,
        (
            "The customer wrote in German about {thing}, and the reply is in English.",
            "Wrong language: the question on {thing} is in German, the reply in English.",
            "The reply to a German question about {thing} is written in English, which is the wrong language.",
        ),
    ),
    "evades": (
        0.1,
        (
            "The reply evades the question about {thing} and only refers the customer to the support hotline.",
            "Instead of an explanation of {thing} it refers to the support hotline, which evades the question.",
            "It evades: asked about {thing}, the assistant refers to the hotline of the support.",
        ),
    ),
}
THINGS = (
    "lamps",
    "chairs",
    "tents",
    "bikes",
    "shelves",
    "boots",
    "kettles",
    "rugs",
    "ovens",
    "scarves",
    "mowers",
    "sofas",
)


def cause_of(text: str) -> str:
    patterns = {
        name: [re.escape(each).replace(r"\{thing\}", r"\w+").replace(r"\{n\}", r"\d+") for each in texts]
        for name, (_, texts) in CAUSES.items()
    }
    (found,) = (name for name, each in patterns.items() if any(re.fullmatch(pattern, text) for pattern in each))
    return found


def failing(number: int, text: str, **fields: Any) -> Verdict:
    score = Score("safety", 0.0, passed=False, rationale=text)
    ids = {"evaluation_id": f"e{number}", "trace_id": f"{number:032x}"}
    return make_verdict(number, outcome="scored", scores=(score,), **ids, **fields)


def planted(seed: int, count: int = 300, shares: Mapping[str, float] = {}) -> list[Verdict]:
    """Failures of the four causes, with these shares of the weight."""
    chance, verdicts = random.Random(seed), list[Verdict]()
    for name, (share, texts) in CAUSES.items():
        for _ in range(round(count * shares.get(name, share))):
            text = chance.choice(texts).format(thing=chance.choice(THINGS), n=chance.randint(2, 900))
            fields = {"weight": 2.0, "probability": 0.5, "session_id": chance.choice([None, f"s{chance.random()}"])}
            verdicts.append(failing(1_000 * seed + len(verdicts), text, **fields))
    chance.shuffle(verdicts)
    return verdicts


def write(keyspace: Keyspace, verdicts: list[Verdict], at_ms: int) -> None:
    for number, verdict in enumerate(verdicts):
        fields = {"v": 1, "j": msgspec.json.encode(verdict)}
        keyspace.client.xadd(keyspace.keys.verdicts, fields, id=f"{at_ms}-{number + 1}")


def last_hour_ms() -> int:
    """The begin of this hour, in which no test may end."""
    now_ms = int(time.time() * 1000)
    if now_ms % HOUR_MS > HOUR_MS - 120_000:
        pytest.skip("two minutes before the end of an hour")
    return now_ms // HOUR_MS * HOUR_MS


@pytest.fixture
def mix(keyspace: Keyspace) -> Keyspace:
    """Two windows of failures, of which the first had fewer outdated prices; and verdicts that are none of them."""
    hour_ms = last_hour_ms()
    write(keyspace, planted(1, 200, {"price": 0.2, "source": 0.5}), hour_ms - 30 * HOUR_MS)
    others = [
        failing(9_001, "A repeat of an outdated price.", origin="repeat"),
        make_verdict(9_002, outcome="scored", scores=(Score("safety", 1.0, passed=True, rationale="A price list."),)),
        make_verdict(9_003),
    ]
    write(keyspace, [*planted(2), *others], hour_ms - 2 * HOUR_MS)
    return keyspace


@pytest.fixture
def here(run: Run, monkeypatch: pytest.MonkeyPatch, keyspace: Keyspace) -> Run:
    """Run a command with the keyspace."""
    monkeypatch.setenv("TRACEJUDGE_REDIS_URL", keyspace.url)
    monkeypatch.setenv("TRACEJUDGE_PREFIX", keyspace.prefix)
    return run


def settings_with(
    keyspace: Keyspace, endpoint: ChatEndpoint | None = None, budget: float = 1.0, **more: Any
) -> Settings:
    own = {}
    if endpoint is not None:
        model = ModelSettings(base_url=endpoint.base_url, model="writer", price=Price(input=1.0, output=4.0))
        own = {"models": {"writer": model}, "failures": Failures(model="writer", budget=budget)}
    return settings_of(keyspace, export_explanations=True, **own, **more)


def check_mix(found: Themes, names: set[str]) -> None:
    """Check that each cause is one theme, with its planted share in the interval, and the change since before."""
    assert (found.failures, found.before) == (300, 200)
    causes = {}
    for theme in found.themes:
        (cause,) = {cause_of(example.text) for example in theme.examples}
        assert cause not in causes, (cause, theme.name, causes[cause].name)
        causes[cause] = theme
    assert causes.keys() == CAUSES.keys()
    for cause, theme in causes.items():
        share = CAUSES[cause][0]
        assert theme.share.low <= share <= theme.share.high, (cause, theme.share)
        assert abs(theme.count - 300 * share) <= 6, (cause, theme.count)
        assert len({example.trace_id for example in theme.examples}) == 3, cause
    changed = {cause: theme.change for cause, theme in causes.items() if theme.change is not None}
    assert changed["price"].low > 0 > changed["source"].high
    assert changed["language"].low < 0 < changed["language"].high
    assert not names or {theme.name for theme in found.themes} == names


def test_a_planted_mix_is_found_by_words(mix: Keyspace) -> None:
    check_mix(find_themes(mix.store, settings_with(mix)), set())


def test_the_same_input_gives_the_same_themes_in_every_process(mix: Keyspace) -> None:
    """Python orders sets of texts by hashes that differ from process to process."""
    script = (
        "import sys; from worker.core.storage.client import Store; from worker.core.storage.keys import Keys\n"
        "from worker.features.failures.themes import *; from worker.core.config.settings import Settings\n"
        "store = Store(sys.argv[1], Keys(sys.argv[2]))\n"
        "rows = [read_failures(store, Settings(), until, 24, VerdictFilter()) for until in map(float, sys.argv[3:])]\n"
        "print(msgspec.json.encode(group(*rows, shows_texts=True)).decode())"
    )
    until = last_hour_ms() / 1000
    arguments = [sys.executable, "-c", script, mix.url, mix.prefix, str(until), str(until - 86_400)]
    printed = {
        subprocess.run(arguments, env={"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, check=True, text=True).stdout
        for seed in "123"
    }
    assert len(printed) == 1
    assert len(json.loads(printed.pop())) == 4


NAMES = {
    "price": "states outdated prices",
    "source": "invents sources",
    "language": "wrong language",
    "evades": "evades",
}


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


def test_a_model_is_asked_once_an_hour_and_everybody_sees_its_themes(mix: Keyspace, endpoint: ChatEndpoint) -> None:
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
    kept = str(mix.client.hgetall(FailuresKeys(mix.prefix).failures(last_hour_ms() // HOUR_MS // 24)))
    assert NAMES["price"] in kept
    assert not [thing for thing in THINGS if thing in kept]
    # Another window is grouped by words, and asks nobody.
    assert find_themes(mix.store, settings, hours=48).by == "words"
    assert len(endpoint.calls) == 1


def test_a_model_that_fails_or_is_too_dear_leaves_the_words(mix: Keyspace, endpoint: ChatEndpoint) -> None:
    key = FailuresKeys(mix.prefix).failures(last_hour_ms() // HOUR_MS // 24)
    cases: Mapping[str, tuple[Any, float, int, str]] = {
        "too dear": (grouping, 0.001, 0, "over_budget"),
        "unreadable": (answers_json({"themes": "none"}), 1.0, 2, "invalid_answer"),
        "no numbers": (answers_json({"rationale": "So.", "result": ["prices", "sources:"]}), 1.0, 1, "none"),
        "fails": (Reply(status=500), 1.0, 2, "judge_unavailable"),
    }
    for name, (behaviour, budget, calls, why) in cases.items():
        endpoint.forget()
        mix.client.delete(key)
        endpoint.behaviour = behaviour
        found = find_themes(mix.store, settings_with(mix, endpoint, budget))
        assert (found.by, len(found.themes)) == (f"words; the model gave no themes: {why}", 4), name
        assert find_themes(mix.store, settings_with(mix, endpoint, budget)) == found, name
        assert len(endpoint.calls) == calls, name


def test_texts_are_redacted_and_shown_only_with_export_explanations(mix: Keyspace, here: Run) -> None:
    hidden = here("failures", "--hours", "24")
    assert hidden.code == 0, hidden
    assert "300 failing verdicts in 24 hours, 200 before" in hidden.out
    texts = {failure.text for theme in find_themes(mix.store, settings_with(mix)).themes for failure in theme.examples}
    assert not [text for text in texts if text[:60] in hidden.out]
    redact = Redact(patterns=["German"])
    redacted = find_themes(mix.store, settings_with(mix, redact=redact))
    assert len(redacted.themes) == 4
    assert "German" not in msgspec.json.encode(redacted).decode()


def test_nothing_is_made_of_nothing(keyspace: Keyspace, here: Run) -> None:
    """One failure shares nothing, equal ones all, and reasons without words nothing."""
    last_hour_ms()
    ended = here("failures")
    assert (ended.code, ended.out) == (1, ""), ended
    assert "no verdict of these 24 hours fails" in ended.err
    now_ms = int(time.time() * 1000) - 60_000
    write(keyspace, [failing(1, "Alone.")], now_ms)
    assert find_themes(keyspace.store, settings_with(keyspace)).themes == []
    write(keyspace, [failing(number, "The answer is empty.") for number in range(2, 6)], now_ms + 1)
    (theme,) = find_themes(keyspace.store, settings_with(keyspace)).themes
    assert (theme.count, theme.share.value, theme.change) == (4, 0.8, None)
    write(keyspace, [failing(number, "12, 13!") for number in range(6, 12)], now_ms + 2)
    document = here("failures", "--json").document
    assert [theme["count"] for theme in document["themes"]] == [6, 4]
    assert document["before"] == 0


def test_the_board_has_a_card(mix: Keyspace) -> None:
    with serving(mix.url, mix.prefix) as url:
        deadline = time.monotonic() + 30
        while "What fails alike" not in (page := httpx.get(url).text):
            assert time.monotonic() < deadline, page
            time.sleep(0.2)
    assert "Share of 300 failing verdicts" in page
    assert [f">theme {rank}<" in page for rank in range(1, 6)] == [True] * 4 + [False]
    assert "outdated" not in page
    assert Counter(re.findall(r'href="/verdicts/(e\w+)"', page)).total() == 12
