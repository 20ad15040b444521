"""Judges in code as their authors write them: what they declare, what they may return, and how they are found."""

import asyncio
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from attacks import ATTACKS
from code_judges import FILE, PATIENT, judged, of_file, told, trace
from judged_code import has_link, measured, several
from support.commands import IN_CODE, POLITE, Run, check_commands, write_own_judges
from support.tables import read_table

import judges.code
from judges.code import CodeError, Metric, Score, judge
from judges.core import verdict
from judges.core.judge import AnyOf, JudgeFailedError, Reading
from judges.core.sessions import join, turns
from judges.core.verdict import Assessment
from judges.custom import DefinitionError, define
from judges.features.python.importing import Loaded
from judges.features.python.installed import installed
from judges.features.python.runner import make, reading_of
from tracejudge import Trace
from worker.core.config.loading import load
from worker.core.config.settings import SettingsError

TABLES = read_table(__file__, "code_judges")
ONE = (Metric("m", "0..1", None),)
RATED = (Metric("m", "0..1", ">= 0.5", pass_at=0.5),)
TRUE = (Metric("m", "0 or 1", "true"),)
TWO = (*TRUE, Metric("n", "0..1", None, descriptive=True))
SOURCE = "from judges.code import judge\n@judge{}\ndef good(trace) -> bool:\n    return {}\n"


def function(_trace: Trace) -> bool:
    return True


# --- what a judge returns ---


def as_result(value: Any) -> Any:
    """Read a result of the table: an object is a score."""
    if isinstance(value, list):
        return [as_result(each) for each in value]
    return Score(**value) if isinstance(value, dict) else value


def test_the_result_of_a_judge_becomes_scores() -> None:
    metrics_of = {"one": ONE, "rated": RATED, "true": TRUE, "two": TWO}
    for value, metrics, scores in TABLES["results"]:
        reading = reading_of(as_result(value), metrics_of[metrics])
        assert [[score.metric, score.value, score.raw, score.passed] for score in reading.scores] == scores, value
    reading = reading_of(Score(1, label="good", rationale="So it is."), ONE)
    assert reading == Reading((verdict.Score("m", 1.0, 1.0, "good"),), "So it is."), "the reasons of one score"
    reading = reading_of([Score(1, "m", rationale="a"), Score(0, "n", rationale="b")], TWO)
    assert (reading.rationale, [score.rationale for score in reading.scores]) == (None, ["a", "b"]), "of several"
    assert reading_of((True, "It holds one."), TRUE).rationale == "It holds one."
    labels = {"formal": 1.0, "plain": 0.5, "casual": 0.0}
    for result, label, rationale in (
        (("plain", "It says mate."), "plain", "It says mate."),
        ("casual", "casual", None),
        (Score(label="formal", rationale="It is."), "formal", "It is."),
    ):
        value, reading = labels[label], reading_of(result, RATED, labels)
        expected = verdict.Score("m", value, label, label, passed=value >= 0.5)
        assert (reading.scores, reading.rationale) == ((expected,), rationale), result
        assert reading_of(result, ONE) == Reading((), rationale, {"result": label}), "without values it is stored"


def test_anything_else_is_a_failure() -> None:
    labels = {"formal": 1.0}
    required = "where true, false, a number, a label, a Score or None is required"
    cases: tuple[tuple[Any, Any, str], ...] = (
        (Score(1), TWO, "gave a score that names no metric, where it has several"),
        (Score(1, passed=True), ONE, "says whether m passed, for which it declares no pass rule"),
        (1 + 1e-9, ONE, "gave a value of m outside 0..1"),
        (1j, ONE, f"gave complex, {required}"),
        (b"1", ONE, f"gave bytes, {required}"),
        (Path(), ONE, f"gave pathlib.{type(Path()).__name__}, {required}"),
        (Score(None), ONE, "gave a score without a value and without a label"),
        *((result, ONE, "") for result in (" ", Score())),
        *((result, TWO, "") for result in ("plain", [Score(label="a", metric="m"), Score(label="b", metric="n")])),
        ("blunt", RATED, ""),
    )
    for result, metrics, note in cases:
        with pytest.raises(JudgeFailedError) as failed:
            reading_of(result, metrics, labels if metrics is RATED else {})
        assert str(failed.value).startswith(note), result


# --- what it declares ---


def test_pass_rules_and_labels_describe_the_metric_and_make_another_version() -> None:
    def tone(_trace: Trace) -> tuple[str, str]:
        return "plain", ""

    labels = {"casual": 0, "formal": 1, "plain": 0.5}
    with_labels, bare = judge(labels=labels, pass_at=0.5, version="1")(tone), judge(version="1")(tone)
    assert with_labels.metrics_of("m") == (Metric("m", "formal | plain | casual", "formal or plain", pass_at=0.5),)
    assert bare.metrics_of("m") == (Metric("m", "text", None, descriptive=True),)
    assert with_labels.fingerprint != bare.fingerprint
    for wrong in ({"a": 2}, {" ": 1}, ["a"]):
        with pytest.raises(CodeError, match="labels"):
            judge(labels=wrong)  # type: ignore[call-overload]

    def untyped(_trace):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return True

    def optional(_trace: Trace) -> bool | None:
        return None

    def in_words(_trace: Trace) -> "bool":
        return True

    def number(_trace: Trace) -> float:
        return 1

    rule = (Metric("name", "0 or 1", "true"),)
    assert [judge(each).metrics_of("name") for each in (function, untyped, optional, in_words)] == [rule] * 4
    assert judge(number).metrics_of("name") == (Metric("name", "0..1", None),)
    assert judge(pass_at=0.25)(number).metrics_of("name") == (Metric("name", "0..1", ">= 0.25", pass_at=0.25),)


def test_a_function_stays_callable_and_declares_its_question() -> None:
    assert has_link(trace()) is True
    assert asyncio.run(measured(told(value=0.5))) == Score(0.5, label="measured", rationale="As it says.")
    assert (has_link.asks, judge(function).asks) == ("Does the answer hold a link?", "A judge in Python.")
    assert judge(asks="Is it so?")(function).asks == "Is it so?"
    assert judges.code.__all__ == sorted(judges.code.__all__)
    assert all(hasattr(judges.code, name) for name in judges.code.__all__)


def tuples_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """Read lists of a table as a declaration writes them."""
    made: dict[str, Any] = {}
    if isinstance(needs := arguments.get("needs"), list):
        made["needs"] = tuple(tuple(each) if isinstance(each, list) else each for each in needs)
    if isinstance(metrics := arguments.get("metrics"), list):
        made["metrics"] = tuple(Metric(*each[:3], pass_at=each[3] if each[3:] else None) for each in metrics)
    return made


def test_a_mistake_in_the_declaration_is_told() -> None:
    cases = [({**arguments, **tuples_of(arguments)}, fix) for arguments, fix in TABLES["wrong declarations"]]
    cases += [
        ({"pass_at": float("nan")}, "pass_at must be above 0 and at most 1"),
        ({"time_limit_s": float("inf")}, "time_limit_s must be above 0 and at most 3600"),
        ({"metrics": ("a", "b")}, 'metrics must be a tuple of Metric, as (Metric("polite", "0 or 1", "true"),)'),
        ({"metrics": ONE[0]}, "metrics must be a tuple of Metric"),
    ]
    for arguments, fix in cases:
        with pytest.raises(CodeError) as failed:
            judge(**arguments)(function)
        assert str(failed.value).startswith(fix), arguments
    decorated: list[tuple[Any, str]] = [
        (lambda a, b: a is b, "<lambda>(a, b) must take one argument, the trace; give the others defaults"),
        (lambda: True, "<lambda>() must take one argument, the trace"),
        (lambda *, a: a, "<lambda>(*, a) must take one argument, the trace"),
        (Trace, "@judge must decorate a function of a trace"),
        (3, "@judge must decorate a function of a trace"),
    ]
    for target, fix in decorated:
        with pytest.raises(CodeError) as failed:
            judge(target)
        assert str(failed.value).startswith(fix)
    callables: tuple[Any, ...] = (lambda a, b=1: a is b, lambda *a: a, max)
    assert [judge(right).needs for right in callables] == [("output",)] * 3, "the trace is the only argument"


def test_the_version_follows_file_declaration_and_name(tmp_path: Path) -> None:
    def version(declared: str = "", result: str = "True", name: str = "a") -> str:
        folder = tmp_path / f"{len([*tmp_path.iterdir()])}"
        folder.mkdir()
        (folder / "judged.py").write_text(SOURCE.format(declared, result))
        return define(name, {"code": f"{folder / 'judged.py'}:good"}).version

    assert version() == version(), "it does not follow the folder"
    first = version('(version="1")')
    assert first == version('(version="1")', result="False"), "a declared version replaces that of the file"
    others = [version(f'(version="1", {more})') for more in ("pass_at=0.5", 'needs=("input",)')]
    different = [version(), version(result="False"), version(name="b"), first, version('(version="2")'), *others]
    assert len(set(different)) == len(different)
    other = of_file("has_link", processes=4, time_limit_s=3, asks="Is there one?")
    assert of_file("has_link").version == other.version, "how often and how long it runs is no part of it"
    needs = [("input", "output"), (("input", "output"),), (AnyOf(("input", "output")),)]
    assert len({judge(needs=need, version="1")(function).fingerprint for need in needs}) == 3
    space: dict[str, Any] = {"__name__": "typed_in"}
    exec("from judges.code import judge\ndef function(trace): return True\n", space)  # noqa: S102
    assert judge(version="1")(space["function"]).fingerprint
    with pytest.raises(CodeError, match=r'has no file to tell versions by; write @judge\(version="1"\)'):
        _ = judge(space["function"]).fingerprint


# --- how it is found ---


def test_a_table_makes_a_judge() -> None:
    made = define("several", {"code": f"{FILE}:several", "asks": "How long and polite?"})
    assert (made.name, made.asks) == ("several", "How long and polite?")
    assert (made.needs, made.metrics) == (several.needs, several.metrics)
    assert (made.prompts(trace()), made.fixed_parts, made.schema) == ((), (), {})
    made = define("links", {"code": f"{FILE}:has_link", **PATIENT})
    assert judged(made, trace(), trace("None.")) == [
        Assessment("scored", scores=(verdict.Score("links", 1.0, 1.0, passed=True),)),
        Assessment("scored", scores=(verdict.Score("links", 0.0, 0.0, passed=False),)),
    ]
    score = verdict.Score("measured", 0.75, 0.75, "measured", passed=True)
    assert judged(of_file("measured"), told(value=0.75), told()) == [
        Assessment("scored", scores=(score,), rationale="As it says."),
        Assessment("abstained"),
    ]
    assessment, missing = judged(
        of_file("several"),
        trace("please" * 5, expected_response="x"),
        trace(expected_response="a", expected_facts=["b"]),
    )
    assert assessment.scores == (verdict.Score("length", 0.3, 0.3), verdict.Score("polite", 1.0, 1.0, passed=True))
    note = "expected_response and expected_facts exclude each other: give one"
    assert (missing.reason, missing.note) == ("missing_input", note)
    # Half a surrogate pair comes in no trace: it is no JSON.
    traces = [attack for name, attack in ATTACKS.items() if name != "lone surrogates"]
    expected = ["https://" in attack.output for attack in traces]
    assert [each.scores[0].passed for each in judged(of_file("has_link"), *traces)] == expected


def test_modules_and_files_are_found_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, result in (("a", "True"), ("b", "False"), ("our_judges", "'http' in trace.output")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "judged.py").write_text(SOURCE.format("", result))
    monkeypatch.syspath_prepend(tmp_path)
    made = [
        define("good", {"code": f"{code}:good", **PATIENT})
        for code in (tmp_path / "a/judged.py", tmp_path / "b/judged.py", "our_judges.judged")
    ]
    assert [judged(each, trace())[0].scores[0].passed for each in made] == [True, False, True]
    monkeypatch.chdir(FILE.parent)
    codes = ("judged_code.py:has_link", "./judged_code.py:has_link", f"{FILE}:has_link")
    assert len({define("links", {"code": code}).version for code in codes}) == 1


def test_a_mistake_in_a_table_or_a_module_is_told_with_key_and_fix(tmp_path: Path) -> None:
    for table, complaint in TABLES["wrong tables"]:
        with pytest.raises(DefinitionError) as wrong:
            define("good", table)
        assert str(wrong.value).startswith(complaint)
        assert "\n" not in str(wrong.value)
    before = set(sys.modules)
    long = {"raise ValueError('x' * 1000)": f"(ValueError: {'x' * 199}… (judged.py:1))"}
    for number, (text, complaint) in enumerate({**TABLES["wrong modules"], **long}.items()):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / "judged.py").write_text(text)
        with pytest.raises(DefinitionError) as wrong:
            define("good", {"code": f"{folder / 'judged.py'}:good"})
        assert complaint in str(wrong.value)
        assert "secret@" not in str(wrong.value)
    assert not [name for name in set(sys.modules) - before if name.startswith("judged_")]


def test_a_path_is_relative_to_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine/folder.py").mkdir(parents=True)
    Path("mine/judging.py").write_text(IN_CODE, encoding="utf-8")
    Path("mine/kind.toml").write_text('code = "judging.py:short"', encoding="utf-8")
    assert load({"TRACEJUDGE_JUDGES_FOLDER": "mine"}).judges["kind"]["code"] == "mine/judging.py:short"
    for code, fix in TABLES["wrong files"].items():
        Path("mine/kind.toml").write_text(f'code = "{code}"', encoding="utf-8")
        with pytest.raises(SettingsError) as caught:
            load({"TRACEJUDGE_JUDGES_FOLDER": "mine"})
        assert str(caught.value).endswith(fix)


@pytest.fixture
def distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Install distributions with judges, one after the other; none is known before or after."""

    def install(name: str, points: str, source: str = "") -> None:
        folder = tmp_path / f"site{len([*tmp_path.glob('site*')])}"
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tracejudge.judges]\n{points}\n")
        (folder / f"{name}.py").write_text(source or SOURCE.format("(time_limit_s=60)", "True"))
        monkeypatch.syspath_prepend(folder)
        installed.cache_clear()

    yield install
    installed.cache_clear()


def test_a_judge_of_a_distribution_has_the_name_of_its_entry_point(distributions: Any) -> None:
    distributions("ourjudges", "is_good = ourjudges:good")
    assert "is_good" in metadata.entry_points(group="tracejudge.judges").names
    (assessment,) = judged(installed()["is_good"], trace())
    assert assessment.scores == (verdict.Score("is_good", 1.0, 1.0, passed=True),)
    assert installed() is installed()
    with pytest.raises(DefinitionError) as wrong:
        installed(frozenset({"is_good"}))
    assert str(wrong.value).startswith("ourjudges: tracejudge.judges.is_good: that is the name of a built-in judge")
    distributions("other", "is_good = other:good")
    with pytest.raises(DefinitionError, match="another distribution has a judge of this name"):
        installed()


@pytest.mark.parametrize(("points", "complaint"), TABLES["wrong entry points"].items())
def test_a_mistake_names_the_distribution(distributions: Any, points: str, complaint: str) -> None:
    distributions("wrong", points)
    with pytest.raises(DefinitionError) as wrong:
        installed()
    assert str(wrong.value).startswith(complaint)


def test_commands_name_the_distribution_of_a_judge(run: Run, distributions: Any) -> None:
    write_own_judges()
    distributions("our-judges", "short = judges_of_ours:short")
    (Path(sys.path[0]) / "judges_of_ours.py").write_text(IN_CODE, encoding="utf-8")
    origins = {row["name"]: row["origin"] for row in run("judges", "--json").document}
    shown = run("judges", "show", "short", "--json").document["origin"]
    assert origins["short"] == shown == "distribution our-judges"
    Path("mine/short.toml").write_text(POLITE, encoding="utf-8")
    assert run("judges").complaint.endswith("of an installed distribution; rename it, or uninstall our-judges")


def test_a_judge_in_python_judges_a_conversation() -> None:
    @judge(unit="session", version="1")
    def short(conversation: Trace) -> bool:
        return len(turns(conversation)) <= 4

    assert (short.unit, short.needs) == ("session", (AnyOf(("messages", "input", "output")),))
    assert short(join([trace("B", input="A?"), trace("", input="C?")]))
    assert short.fingerprint != judge(needs=short.needs, version="1")(short.function).fingerprint
    made = make("short", "a:b", Loaded(short, None, b""), asks="Is it short?")
    assert (made.unit, made.missing(trace("B"))) == ("session", None)


# --- on the command line ---


def test_commands_run_a_judge_in_code_where_no_model_can_be_opened(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSENT_KEY", raising=False)
    check_commands(run, monkeypatch, read_table(__file__, "code_commands"))
