"""`[redact]` in the configuration: what it may say, and the one line for what it may not."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from judges.requests.redaction import Redact, pattern_fault
from worker.core.config.loading import load
from worker.core.config.settings import Settings, SettingsError

pytestmark = pytest.mark.usefixtures("_plain_environment", "_folder")


@pytest.fixture
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str) -> None:
    Path("tracejudge.toml").write_text(text, encoding="utf-8")


def test_nothing_is_redacted_unless_configured() -> None:
    assert load({}).redact == Redact(builtin=False, patterns=(), sign="[redacted]")


def test_the_table_is_read_from_the_file() -> None:
    write('[redact]\nbuiltin = true\npatterns = ["ACME-\\\\d+"]\nsign = "[gone]"\n')
    assert load({}) == Settings(redact=Redact(builtin=True, patterns=(r"ACME-\d+",), sign="[gone]"))


def test_the_variable_is_json() -> None:
    table = {"builtin": True, "patterns": [r"\d{4}"]}
    assert load({"TRACEJUDGE_REDACT": json.dumps(table)}).redact == Redact(builtin=True, patterns=(r"\d{4}",))


@pytest.mark.parametrize(("word", "builtin"), [("1", True), ("On", True), ("true", True), ("0", False), ("off", False)])
def test_the_variable_may_be_the_switch_that_it_is_for_the_sdk(word: str, builtin: bool) -> None:  # noqa: FBT001 - a case
    write('[redact]\npatterns = ["a1"]\n')
    assert load({"TRACEJUDGE_REDACT": word}).redact == Redact(builtin=builtin)


HERE = "tracejudge.toml: redact.patterns"
SLOW = "takes too long on some texts; take a repeat out of another, as (a+)+, or one of two side by side"
MISTAKES = {
    "unknown key": ("[redact]\npattern = []", "tracejudge.toml: redact.pattern: unknown key; did you mean patterns?"),
    "no table": ("redact = true", "tracejudge.toml: redact: must be a table with some of builtin, patterns, sign"),
    "one pattern": ('[redact]\npatterns = "a"', 'tracejudge.toml: redact.patterns: must be a list, as ["…"]'),
    "no switch": ("[redact]\nbuiltin = 7", "tracejudge.toml: redact.builtin: must be true or false"),
    "no expression": (
        '[redact]\npatterns = ["a", "(b"]',
        f"{HERE}[1]: is no regular expression: missing ), unterminated subpattern at character 1; fix it there",
    ),
    "fits nothing in particular": (
        '[redact]\npatterns = ["a*"]',
        f"{HERE}[0]: matches an empty text; let it ask for at least one character",
    ),
    "repeat in a repeat": ('[redact]\npatterns = ["(a+)+b"]', f"{HERE}[0]: {SLOW}"),
    "very long": (
        f'[redact]\npatterns = ["{"a" * 1_001}"]',
        f"{HERE}[0]: is longer than 1000 characters; make several of it",
    ),
}


@pytest.mark.parametrize(("text", "line"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_redact_is_one_line_with_a_fix(text: str, line: str) -> None:
    write(text)
    with pytest.raises(SettingsError) as caught:
        load({})
    assert str(caught.value) == line


@pytest.mark.parametrize(
    "pattern",
    [r"ACME-\d+", r"(?i)customer:\s*\w+", r"\S+@\S+", r"\b\d{3}-\d{2}-\d{4}\b", r"(?s)BEGIN.*?END", r"(?:a|b)*c"],
)
def test_usual_patterns_are_taken(pattern: str) -> None:
    """Their time is work and not waiting, so that a busy machine changes nothing."""
    assert pattern_fault(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(r"^(\w+\s?)+$", id="words", marks=pytest.mark.slow("searches up to its limit")),
        pytest.param(r"(a|aa)+b", id="two ways to read the same"),
        pytest.param(r"key:(?:x+x+)+y", id="behind a beginning", marks=pytest.mark.slow("searches up to its limit")),
        pytest.param(r"\d*\d*\d*x", id="side by side", marks=pytest.mark.slow("searches up to its limit")),
    ],
)
def test_patterns_that_run_away_are_refused(pattern: str) -> None:
    assert pattern_fault(pattern) == SLOW


def test_a_pattern_is_refused_for_the_time_of_its_search() -> None:
    def ticks(step_s: float) -> Iterator[float]:
        now_s = 0.0
        while True:
            yield now_s
            now_s += step_s

    assert pattern_fault("a", ticks(0.4).__next__) is None
    assert pattern_fault("a", ticks(0.6).__next__) == SLOW
