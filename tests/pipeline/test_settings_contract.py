"""The command line and the configuration with all features: verbs and their help, keys, defaults, mistakes."""

import re
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.cases import each_case
from support.commands import Run
from support.configuration import (
    FILE,
    NAME_THE_VARIABLE,
    QUOTE,
    RULE,
    SECRET,
    Variables,
    check_mistake,
    check_variable,
    features_in,
    in_file,
    keys_of,
)
from support.tables import read_table

from judges.core.model import HeaderSource, ModelSettings
from worker.base.commands.groups import commands
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
from worker.installed import MODULES

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
FILLED = {
    "FRUSTRATION": RULE.replace("safety", "user_frustration"),
    "KINDS": ", ".join(installed_tables()["receivers"].kinds),
    "OF_PHOENIX": ", ".join(PhoenixSettings.__struct_fields__),
    "NAME_THE_VARIABLE": NAME_THE_VARIABLE,
    "QUOTE": QUOTE,
    "RULE": RULE,
    "SECRET": SECRET,
}


def filled(text: str) -> str:
    """Put texts of the product in place of their names in a table."""
    return re.sub(r"\b({})".format("|".join(FILLED)), lambda name: FILLED[name[1]], text)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to an empty folder, because `tracejudge.toml` is read from the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def remove(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Yield a function that takes a feature out, as if its folder were removed."""
    caches = installed, installed_tables, reading.key_types

    def remove(feature: str) -> None:
        def find(name: str) -> object:
            return None if name.endswith(f".{feature}") else find_spec(name)

        monkeypatch.setattr(features, "find_spec", find)
        for function in caches:
            function.cache_clear()

    yield remove
    monkeypatch.undo()
    for function in caches:
        function.cache_clear()


def test_a_key_of_an_absent_feature_is_refused(remove: Callable[[str], None]) -> None:
    for text, (feature, error) in read_table(__file__, "without_feature").items():
        Path(FILE).write_text(filled(text), encoding="utf-8")
        remove(feature)
        with pytest.raises(SettingsError) as refused:
            load({})
        assert error in str(refused.value), text


def test_no_feature_is_configured_by_default_and_each_key_changes_the_configuration_hash() -> None:
    assert Settings.from_keys(late_feedback_wait=60.0, session_idle=180.0, session_max=50) == Settings()
    assert Rule.from_keys(name="all", judges=(), priority=5, combine=None) == Rule("all", ())
    changed = [Settings.from_keys(**{key: value}) for key, (_, value) in VARIABLES.items()]
    assert OF_RULES.keys() == installed_tables("rule_keys").keys()
    rules = [Rule("all", ()), *(Rule.from_keys(name="all", judges=(), **{key: OF_RULES[key]}) for key in OF_RULES)]
    changed += [Settings(rules=(rule,)) for rule in rules]
    hashes = {settings.config_hash for settings in (Settings(), *changed)}
    assert len(hashes) == len(changed) + 1
    assert all(re.fullmatch(r"[0-9a-f]{8}", digits) for digits in hashes)


@each_case("key", sorted(keys_of(features_in("features"))))
def test_every_key_has_its_variable(key: str) -> None:
    check_variable(key, VARIABLES, "models" if key == "cascades" else None)


def test_a_mistake_is_one_line_with_place_key_and_fix() -> None:
    for name, (text, message) in read_table(__file__, "feature_mistakes").items():
        print(f"case: {name}")  # noqa: T201 - pytest shows it with a failure
        check_mistake(in_file(filled(text), filled(message)))


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


def test_the_verbs_are_those_of_the_contract_with_a_line_each(run: Run) -> None:
    assert len(installed()) == len(MODULES)
    assert sorted(commands()) == read_table(__file__, "verbs")
    listed = run("--help").out.split("Commands:\n")[1].split("\n\n")[0]
    assert [line.split()[0] for line in listed.splitlines()] == sorted(commands())
    assert all(len(line.split()) > 1 for line in listed.splitlines())
