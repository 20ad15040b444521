"""The keys that features add to the configuration: their variables, their defaults, and mistakes in them."""

import re
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.cases import each_case
from support.configuration import (
    FILE,
    NAME_THE_VARIABLE,
    QUOTE,
    RULE,
    SECRET,
    Mistake,
    Variables,
    check_mistake,
    check_variable,
    features_in,
    in_file,
    in_rule,
    keys_of,
)

from judges.core.model import HeaderSource, ModelSettings
from worker.core import features
from worker.core.config import reading
from worker.core.config.loading import load
from worker.core.config.settings import Rule, Settings, SettingsError
from worker.core.features import installed, installed_tables
from worker.features.board.feature import Board
from worker.features.budgets.feature import Budget
from worker.features.cascades.feature import Cascade
from worker.features.failures.feature import Failures
from worker.features.gateway.feature import Gateway
from worker.features.receivers.feature import PhoenixSettings

CANARY = str(files("worker.features.canary").joinpath("canary.jsonl"))
VARIABLES: Variables = {
    "late_feedback_wait": ("15s", 15.0),
    "session_max": ("20", 20),
    "max_session_bytes": ("64MiB", 64 << 20),
    "session_idle": ("1m", 60.0),
    "session_keep": ("2h", 7200.0),
    "board": ('{"port": 9811, "user_header": "X-User"}', Board(port=9811, user_header="X-User")),
    "gateway": ('{"port": 4319, "gather_s": 2}', Gateway(port=4319, gather_s=2.0)),
    "canary_file": (CANARY, CANARY),
    "failures": ('{"model": "default", "budget": 0.5}', Failures("default", 0.5)),
    "budgets": ('{"all": {"usd_per_day": 2.5}}', {"all": Budget(usd_per_day=2.5)}),
    "receivers": (
        '{"mine": {"kind": "phoenix", "url": "http://host", "headers": {"x-team": {"env": "TEAM"}}}}',
        {"mine": PhoenixSettings(url="http://host", headers={"x-team": HeaderSource(env="TEAM")})},
    ),
    "cascades": (
        '{"both": {"first": "cheap", "then": "default", "rate": 0.1}}',
        {"both": Cascade("cheap", "default", rate=0.1)},
    ),
    "models": (
        '{"cheap": {"provider": "decisions", "base_url": "http://h", "model": "c"}, "default": {"provider":"lexical"}}',
        {
            "cheap": ModelSettings(provider="decisions", base_url="http://h", model="c"),
            "default": ModelSettings(provider="lexical"),
        },
    ),
}
OF_RULES: Mapping[str, object] = {
    "combine": "all",
    "stratify": ("model",),
    "first_per_hour": 3,
    "budget": "all",
    "priority": 1,
    "repeat": 0.1,
    "second_model": "cheap",
}
KINDS = installed_tables()["receivers"].kinds
OF_PHOENIX = ", ".join(PhoenixSettings.__struct_fields__)


def in_receiver(text: str, message: str) -> Mistake:
    return in_file(f"[receivers.mine]\n{text}\n", f"receivers.mine{message}")


MISTAKES: Mapping[str, Mistake] = {
    # receivers
    "kind of a receiver": in_receiver("kind = 'fenix'", ".kind: unknown kind; did you mean phoenix?"),
    "no kind of a receiver": in_receiver("url = 'http://host'", f".kind: is missing; set one of {', '.join(KINDS)}"),
    "a number as kind": in_receiver("kind = 7", f".kind: unknown kind; set one of {', '.join(KINDS)}"),
    "key of another kind": in_receiver(
        "kind = 'phoenix'\nplacement = 'child'", f".placement: unknown key; known are {OF_PHOENIX}"
    ),
    "value of a receiver": in_receiver("kind = 'otlp'\nlogs = true", ".logs: must be one of auto, off, on"),
    "address of a receiver": in_receiver(
        "kind = 'phoenix'", ".url: is missing; set the address of the receiver, as http://host:port"
    ),
    "folder of a file": in_receiver("kind = 'file'", ".path: is missing; it must be a string"),
    "scheme of a receiver": in_receiver(f"kind = 'phoenix'\nurl = 'http://user:{SECRET}/x@host'", f".url: {QUOTE}"),
    "key as variable": in_receiver(
        f"kind = 'phoenix'\nurl = 'http://h'\napi_key_env = '{SECRET}'", f".api_key_env: {NAME_THE_VARIABLE}"
    ),
    "key twice": in_receiver(
        "kind = 'phoenix'\nurl = 'http://h'\napi_key_env = 'A'\napi_key_file = 'b'",
        ".api_key_file: goes in place of api_key_env; take one of them out",
    ),
    "value of a header": in_receiver(
        f"kind = 'phoenix'\nurl = 'http://h'\nheaders = {{ x-team = '{SECRET}' }}",
        ".headers[...]: must be a table with some of env, file",
    ),
    "source of a header": in_receiver(
        "kind = 'phoenix'\nurl = 'http://h'\nheaders = { x-team = { } }",
        ".headers.x-team: set env or file, one of them",
    ),
    "name of a header": in_receiver(
        "kind = 'phoenix'\nurl = 'http://h'\nheaders = { 'x team' = { env = 'A' } }",
        ".headers: 'x team' is no name of a header; use letters, digits and -",
    ),
    "key of a certificate": in_receiver(
        "kind = 'phoenix'\nurl = 'http://h'\nclient_key = 'k'", ".client_key: goes with client_cert; set it as well"
    ),
    "name of a receiver": in_file(
        "[receivers.otel]\nkind = 'stdout'",
        "receivers.otel: otel is the receiver of otlp_endpoint; choose another name",
    ),
    "receivers as a list": in_file("receivers = []", "receivers: must be tables, each as [receivers.NAME]"),
    # rules
    "a judge of traces among those of conversations": in_rule(
        "unit = 'session'",
        ".judges: 'safety' judges a trace, not a session; set unit = \"trace\", and name only such judges in the rule",
    ),
    "conversations with an error": in_file(
        RULE.replace("safety", "user_frustration") + "unit = 'session'\nalways = ['error']\n",
        "rules[0].always: is for single traces, and the rule judges sessions; take always out",
    ),
    "a model of themes": in_file(
        RULE + "[models.default]\nprovider = 'lexical'\n[failures]\nmodel = 'defualt'\n",
        "failures.model: there is no [models.defualt]; did you mean default?",
    ),
}
OF_FEATURES: Mapping[str, tuple[str, str]] = {
    "[gateway]\nport = 1\n": ("gateway", "gateway: unknown key"),
    "session_idle = 1\n": ("sessions", "session_idle: unknown key"),
    "[receivers.mine]\nkind = 'phoenix'\nurl = 'http://host'\n": ("receivers", "receivers.mine.kind: unknown kind"),
    f"{RULE}model = ['default', 'other']\ncombine = 'mean'\n": ("panels", "rules[0].combine: unknown key"),
    f"{RULE}priority = 1\n": ("budgets", "rules[0].priority: unknown key"),
    f"{RULE}unit = 'session'\n": ("sessions", "rules[0].unit: needs a feature"),
    f"{RULE}repeat = 0.1\n": ("repeats", "rules[0].repeat: unknown key"),
}
"""What a file holds, with the feature that it needs, and the error without the feature."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to an empty folder, because `tracejudge.toml` is read from the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def remove(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Yield a function that takes a feature out, as if its folder were removed."""
    caches = installed, installed_tables, reading.key_types

    def remove(feature: str) -> None:
        monkeypatch.setattr(
            features, "find_spec", lambda name: None if name.endswith(f".{feature}") else find_spec(name)
        )
        for function in caches:
            function.cache_clear()

    yield remove
    monkeypatch.undo()
    for function in caches:
        function.cache_clear()


@pytest.mark.parametrize("text", OF_FEATURES)
def test_a_key_of_an_absent_feature_is_refused(remove: Callable[[str], None], text: str) -> None:
    feature, error = OF_FEATURES[text]
    Path(FILE).write_text(text, encoding="utf-8")
    remove(feature)
    with pytest.raises(SettingsError) as refused:
        load({})
    assert error in str(refused.value)


def test_no_feature_is_configured_by_default() -> None:
    assert Settings.from_keys(late_feedback_wait=60.0, session_idle=180.0, session_max=50) == Settings()
    assert Rule.from_keys(name="all", judges=(), priority=5, combine=None) == Rule("all", ())


@each_case("key", sorted(keys_of(features_in("features"))))
def test_every_key_has_its_variable(key: str) -> None:
    check_variable(key, VARIABLES, "models" if key == "cascades" else None)


def test_each_key_changes_the_configuration_hash() -> None:
    changed = [Settings.from_keys(**{key: value}) for key, (_, value) in VARIABLES.items()]
    assert OF_RULES.keys() == installed_tables("rule_keys").keys()
    rules = [Rule("all", ()), *(Rule.from_keys(name="all", judges=(), **{key: OF_RULES[key]}) for key in OF_RULES)]
    changed += [Settings(rules=(rule,)) for rule in rules]
    hashes = {settings.config_hash for settings in (Settings(), *changed)}
    assert len(hashes) == len(changed) + 1
    assert all(re.fullmatch(r"[0-9a-f]{8}", digits) for digits in hashes)


@each_case("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_with_place_key_and_fix(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_mistake(mistake)


def test_names_of_models_and_judges_are_checked_without_rules(tmp_path: Path) -> None:
    file = tmp_path / "tracejudge.toml"
    model = '[models.small]\nprovider = "lexical"\n'
    cases = {
        '[cascades.two]\nfirst = "small"\nthen = "large"\nrate = 0.5\n': "cascades.two.then",
        '[monitor]\nsafety = ["safe"]\n': "monitor.safety",
    }
    for text, key in cases.items():
        file.write_text(model + text, encoding="utf-8")
        with pytest.raises(SettingsError, match=re.escape(key)):
            load({}, str(file), needs_rules=False)
