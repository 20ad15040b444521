"""Judges in code as their authors write them: what they declare, what they may return, and how they are found."""

import asyncio
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from attacks import ATTACKS
from code_judges import FILE, PATIENT, judged, of_file, told, trace
from judged_code import has_link, measured, several
from support.cases import each_case

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

ONE = (Metric("m", "0..1", None),)
RATED = (Metric("m", "0..1", ">= 0.5", pass_at=0.5),)
TRUE = (Metric("m", "0 or 1", "true"),)
TWO = (*TRUE, Metric("n", "0..1", None, descriptive=True))


PATH = f"pathlib.{type(Path()).__name__}"


def function(_trace: Trace) -> bool:
    return True


class TestReturned:
    def test_a_label_may_come_with_a_text(self) -> None:
        labels = {"formal": 1.0, "plain": 0.5, "casual": 0.0}
        cases: tuple[tuple[object, str, float, str | None], ...] = (
            (("plain", "It says mate."), "plain", 0.5, "It says mate."),
            ("casual", "casual", 0.0, None),
            (Score(label="formal", rationale="It is."), "formal", 1.0, "It is."),
        )
        for result, label, value, rationale in cases:
            reading = reading_of(result, RATED, labels)
            (score,) = reading.scores
            score_fields = (score.label, score.raw, score.value, score.passed, reading.rationale)
            assert score_fields == (label, label, value, value >= 0.5, rationale), result
            assert reading_of(result, ONE) == Reading((), rationale, {"result": label}), "without values it is stored"
        assert reading_of((True, "It holds one."), TRUE).rationale == "It holds one."
        for result, metrics, declared in (
            ("blunt", RATED, labels),
            (" ", ONE, {}),
            (Score(), ONE, {}),
            ("plain", TWO, {}),
            ([Score(label="a", metric="m"), Score(label="b", metric="n")], TWO, {}),
        ):
            with pytest.raises(JudgeFailedError):
                reading_of(result, metrics, declared)

    def test_declared_labels_describe_the_metric_and_make_another_version(self) -> None:
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

    @each_case(
        ("result", "metrics", "scores"),
        [
            (True, TRUE, [("m", 1.0, 1.0, True)]),
            (False, TRUE, [("m", 0.0, 0.0, False)]),
            (True, ONE, [("m", 1.0, 1.0, None)]),
            (0.7, TRUE, [("m", 0.7, 0.7, None)]),
            (1, ONE, [("m", 1.0, 1.0, None)]),
            (0.49, RATED, [("m", 0.49, 0.49, False)]),
            (0.5, RATED, [("m", 0.5, 0.5, True)]),
            (False, RATED, [("m", 0.0, 0.0, False)]),
            (Score(0.2, passed=True, raw="B"), RATED, [("m", 0.2, "B", True)]),
            (Score(0.25, raw=2), ONE, [("m", 0.25, 2.0, None)]),
            ([Score(value=True, metric="m")], TWO, [("m", 1.0, 1.0, True)]),
            (
                (Score(0.1, metric="n"), Score(value=False, metric="m")),
                TWO,
                [("n", 0.1, 0.1, None), ("m", 0.0, 0.0, False)],
            ),
            ([], TWO, []),
            (None, ONE, []),
        ],
    )
    def test_the_result_of_a_judge_becomes_scores(self, result: object, metrics: Any, scores: Any) -> None:
        reading = reading_of(result, metrics).scores
        assert [
            (assessment.metric, assessment.value, assessment.raw, assessment.passed) for assessment in reading
        ] == scores

    def test_the_reasons_for_one_score_are_those_of_the_verdict(self) -> None:
        reading = reading_of(Score(1, label="good", rationale="So it is."), ONE)
        assert reading == Reading((verdict.Score("m", 1.0, 1.0, "good"),), "So it is.")

    def test_several_scores_keep_their_reasons(self) -> None:
        reading = reading_of([Score(1, "m", rationale="a"), Score(0, "n", rationale="b")], TWO)
        assert (reading.rationale, [assessment.rationale for assessment in reading.scores]) == (None, ["a", "b"])

    @each_case(
        ("result", "metrics", "note"),
        [
            (Score(1), TWO, "gave a score that names no metric, where it has several"),
            (Score(1, passed=True), ONE, "says whether m passed, for which it declares no pass rule"),
            (1 + 1e-9, ONE, "gave a value of m outside 0..1"),
            (1j, ONE, "gave complex, where true, false, a number, a label, a Score or None is required"),
            (b"1", ONE, "gave bytes, where true, false, a number, a label, a Score or None is required"),
            (Path(), ONE, f"gave {PATH}, where true, false, a number, a label, a Score or None is required"),
            (Score(None), ONE, "gave a score without a value and without a label"),
        ],
    )
    def test_anything_else_is_a_failure(self, result: object, metrics: Any, note: str) -> None:
        with pytest.raises(JudgeFailedError) as failed:
            reading_of(result, metrics)
        assert str(failed.value) == note


class TestDeclared:
    def test_a_function_stays_callable(self) -> None:
        assert has_link(trace()) is True
        assert asyncio.run(measured(told(value=0.5))) == Score(0.5, label="measured", rationale="As it says.")

    def test_true_and_false_pass_where_the_function_returns_them(self) -> None:
        def untyped(_trace):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            return True

        def optional(_trace: Trace) -> bool | None:
            return None

        def in_words(_trace: Trace) -> "bool":
            return True

        def number(_trace: Trace) -> float:
            return 1

        rule = (Metric("name", "0 or 1", "true"),)
        assert [judge(judge_).metrics_of("name") for judge_ in (function, untyped, optional, in_words)] == [rule] * 4
        assert judge(number).metrics_of("name") == (Metric("name", "0..1", None),)
        assert judge(pass_at=0.25)(number).metrics_of("name") == (Metric("name", "0..1", ">= 0.25", pass_at=0.25),)

    def test_a_judge_declares_its_question(self) -> None:
        assert (has_link.asks, judge(function).asks) == ("Does the answer hold a link?", "A judge in Python.")
        assert judge(asks="Is it so?")(function).asks == "Is it so?"

    @each_case(
        ("arguments", "fix"),
        [
            ({"needs": "output"}, 'needs must be a tuple, as ("output",)'),
            ({"needs": ("output", ("input", "outptu"))}, "needs: a trace has no field 'outptu'; it has trace_id, "),
            ({"pass_at": 0}, "pass_at must be above 0 and at most 1"),
            ({"pass_at": float("nan")}, "pass_at must be above 0 and at most 1"),
            ({"time_limit_s": 0}, "time_limit_s must be above 0 and at most 3600"),
            ({"time_limit_s": float("inf")}, "time_limit_s must be above 0 and at most 3600"),
            ({"metrics": ONE, "pass_at": 0.5}, "pass_at is for the one metric of a judge that declares none"),
            ({"metrics": (*ONE, *ONE)}, "two metrics have the same name; give each its own"),
            ({"metrics": (Metric("A b", "0..1", None),)}, "the metric 'A b' has an invalid name; write at most 64"),
            ({"metrics": (Metric("m", "0..1", None, pass_at=1),)}, "the metric m has pass_at and no pass_rule"),
            ({"metrics": (Metric("m", "0..1", "2", pass_at=2),)}, "pass_at must be above 0 and at most 1"),
            ({"metrics": ("a", "b")}, 'metrics must be a tuple of Metric, as (Metric("polite", "0 or 1", "true"),)'),
            ({"metrics": "a"}, "metrics must be a tuple of Metric"),
            ({"metrics": ONE[0]}, "metrics must be a tuple of Metric"),
            ({"metrics": (Metric("m", "0..1", 1),)}, "the metric m: scale and pass_rule are texts for people"),  # type: ignore[arg-type]
            ({"metrics": (Metric(1, "0..1", None),)}, "the metric 1 has an invalid name"),  # type: ignore[arg-type]
            ({"needs": 3}, "needs must be a tuple of fields of a trace"),
            ({"needs": (3,)}, "needs: a trace has no field 3"),
            ({"pass_at": "0.5"}, "pass_at must be above 0 and at most 1"),
            ({"version": 2}, 'version must be a text, as version="2"'),
            ({"asks": 2}, "asks must be a text"),
            ({"time_limit_s": "1"}, "time_limit_s must be above 0 and at most 3600"),
        ],
    )
    def test_a_mistake_in_the_declaration_is_told(self, arguments: dict[str, Any], fix: str) -> None:
        with pytest.raises(CodeError) as wrong:
            judge(**arguments)(function)
        assert str(wrong.value).startswith(fix)

    @each_case(
        ("wrong", "fix"),
        [
            (lambda a, b: a is b, "<lambda>(a, b) must take one argument, the trace; give the others defaults"),
            (lambda: True, "<lambda>() must take one argument, the trace"),
            (lambda *, a: a, "<lambda>(*, a) must take one argument, the trace"),
            (Trace, "@judge must decorate a function of a trace"),
            (3, "@judge must decorate a function of a trace"),
        ],
    )
    def test_a_function_that_needs_more_than_a_trace_is_refused(self, wrong: Any, fix: str) -> None:
        with pytest.raises(CodeError) as told_so:
            judge(wrong)
        assert str(told_so.value).startswith(fix)

    @each_case("right", [lambda a, b=1: a is b, lambda *a: a, max])
    def test_any_callable_with_a_trace_as_only_argument_is_accepted(self, right: Any) -> None:
        assert judge(right).needs == ("output",)

    def test_public_names_are_these(self) -> None:
        assert judges.code.__all__ == sorted(judges.code.__all__)
        assert all(hasattr(judges.code, name) for name in judges.code.__all__)


class TestVersion:
    SOURCE = "from judges.code import judge\n@judge{}\ndef good(trace) -> bool:\n    return {}\n"

    def version(self, folder: Path, declared: str = "", result: str = "True", name: str = "a") -> str:
        folder = folder / f"{len([*folder.iterdir()])}"
        folder.mkdir()
        (folder / "judged.py").write_text(self.SOURCE.format(declared, result))
        return define(name, {"code": f"{folder / 'judged.py'}:good"}).version

    def test_the_version_follows_the_file_and_not_its_folder(self, tmp_path: Path) -> None:
        assert self.version(tmp_path) == self.version(tmp_path)
        assert self.version(tmp_path) != self.version(tmp_path, result="False")

    def test_a_declared_version_replaces_that_of_the_file(self, tmp_path: Path) -> None:
        first = self.version(tmp_path, '(version="1")')
        assert first == self.version(tmp_path, '(version="1")', result="False")
        assert first != self.version(tmp_path, '(version="2")')

    @pytest.mark.parametrize("declared", ['version="1", pass_at=0.5', 'version="1", needs=("input",)'])
    def test_declared_arguments_change_the_version(self, tmp_path: Path, declared: str) -> None:
        assert self.version(tmp_path, '(version="1")') != self.version(tmp_path, f"({declared})")

    def test_the_name_is_part_of_it(self, tmp_path: Path) -> None:
        assert self.version(tmp_path) != self.version(tmp_path, name="b")

    def test_how_often_and_how_long_it_runs_is_not(self) -> None:
        other = of_file("has_link", processes=4, time_limit_s=3, asks="Is there one?")
        assert of_file("has_link").version == other.version

    def test_any_of_several_fields_is_another_need_than_all_of_them(self) -> None:
        needs = [("input", "output"), (("input", "output"),), (AnyOf(("input", "output")),)]
        prints = {judge(needs=need, version="1")(function).fingerprint for need in needs}
        assert len(prints) == 3

    def test_a_judge_without_a_file_must_declare_its_version(self) -> None:
        space: dict[str, Any] = {"__name__": "typed_in"}
        exec("from judges.code import judge\ndef function(trace): return True\n", space)  # noqa: S102
        assert judge(version="1")(space["function"]).fingerprint
        with pytest.raises(CodeError, match=r'has no file to tell versions by; write @judge\(version="1"\)'):
            _ = judge(space["function"]).fingerprint


class TestFound:
    def test_a_table_makes_a_judge(self) -> None:
        made = define("several", {"code": f"{FILE}:several", "asks": "How long and polite?"})
        assert (made.name, made.asks, made.needs, made.metrics) == (
            "several",
            "How long and polite?",
            several.needs,
            several.metrics,
        )
        assert (made.prompts(trace()), made.fixed_parts, made.schema) == ((), (), {})

    def test_scores_have_the_name_of_the_judge(self) -> None:
        made = define("links", {"code": f"{FILE}:has_link", **PATIENT})
        assessments = judged(made, trace(), trace("None."))
        assert assessments == [
            Assessment("scored", scores=(verdict.Score("links", 1.0, 1.0, passed=True),)),
            Assessment("scored", scores=(verdict.Score("links", 0.0, 0.0, passed=False),)),
        ]

    def test_a_judge_can_be_asynchronous_and_can_abstain(self) -> None:
        assessment = judged(of_file("measured"), told(value=0.75), told())
        score = verdict.Score("measured", 0.75, 0.75, "measured", passed=True)
        assert assessment == [Assessment("scored", scores=(score,), rationale="As it says."), Assessment("abstained")]

    def test_a_judge_can_have_several_metrics(self) -> None:
        (assessment,) = judged(of_file("several"), trace("please" * 5, expected_response="x"))
        assert assessment.scores == (verdict.Score("length", 0.3, 0.3), verdict.Score("polite", 1.0, 1.0, passed=True))

    def test_a_module_is_found_on_the_path_of_the_worker(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        package = tmp_path / "our_judges"
        package.mkdir()
        (package / "links.py").write_text(
            "from judges.code import judge\n@judge\ndef has_link(trace) -> bool: return 'http' in trace.output\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        (assessment,) = judged(define("links", {"code": "our_judges.links:has_link", **PATIENT}), trace())
        assert assessment.outcome == "scored"

    def test_a_file_is_found_from_the_working_directory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(FILE.parent)
        for place in ("judged_code.py", "./judged_code.py"):
            assert (
                define("links", {"code": f"{place}:has_link"}).version
                == define("links", {"code": f"{FILE}:has_link"}).version
            )

    def test_files_of_one_name_in_two_folders_are_two_modules(self, tmp_path: Path) -> None:
        for name, result in (("a", "True"), ("b", "False")):
            (tmp_path / name).mkdir()
            text = f"from judges.code import judge\n@judge\ndef good(trace) -> bool: return {result}\n"
            (tmp_path / name / "judged.py").write_text(text)
        made = [define("good", {"code": f"{tmp_path / name / 'judged.py'}:good", **PATIENT}) for name in ("a", "b")]
        assert [judged(judge_, trace())[0].scores[0].passed for judge_ in made] == [True, False]

    @each_case(
        ("table", "complaint"),
        [
            ({"code": "good"}, 'code: good: must be "package.module:name" or "file.py:name"'),
            ({"code": "a b:good"}, 'code: a b:good: must be "package.module:name" or "file.py:name"'),
            ({"code": "nowhere.at_all:good"}, "code: nowhere.at_all:good: cannot be imported (ModuleNotFoundError: "),
            ({"code": "nowhere.py:good"}, "code: nowhere.py:good: cannot be read (there is no such file)"),
            ({"code": "json:dumps"}, "code: json:dumps: dumps is no judge; write @judge, of judges.code, above the"),
            ({"code": "json:dump_it"}, "code: json:dump_it: json defines no dump_it; known are none: write @judge"),
            ({"code": 3}, "code: must be a string"),
            ({"code": "a:b", "time_limit_s": 0}, "time_limit_s: must be a number"),
            ({"code": "a:b", "processes": 0}, "processes: must be a whole number"),
            ({"code": "a:b", "process": 1}, "process: unknown key; did you mean processes?"),
            ({"code": "a:b", "instructions": "x {{ outputs }}"}, "code: cannot be combined with instructions"),
        ],
    )
    def test_a_mistake_in_the_table_is_told_with_key_and_fix(self, table: dict[str, Any], complaint: str) -> None:
        with pytest.raises(DefinitionError) as wrong:
            define("good", table)
        assert str(wrong.value).startswith(complaint)
        assert "\n" not in str(wrong.value)

    @each_case(
        ("text", "said"),
        [
            ("raise ValueError('redis://:secret@host')", "imported (ValueError: redis://…@host (judged.py:1))"),
            ("\nraise SystemExit('one\\ntwo')", "imported (SystemExit: one two (judged.py:2))"),
            ("import re\n\nre.compile('(')", "(error: missing ), unterminated subpattern at position 0 (judged.py:3))"),
            ("raise ValueError('x' * 1000)", f"(ValueError: {'x' * 199}… (judged.py:1))"),
            ("raise KeyError", "(KeyError (judged.py:1))"),
            ("a = 1\nsecret = = 1", "(SyntaxError: invalid syntax (judged.py:2))"),
            ("import os\nos.environ['SHOP_TOKEN']", "(KeyError: 'SHOP_TOKEN' (judged.py:2))"),
            ("import secrets.nowhere", "(ModuleNotFoundError: No module named 'secrets.nowhere'; 'secrets' is not"),
            ("from judges.code import judge\njudge(pass_at=2)", "pass_at must be above 0 and at most 1"),
        ],
    )
    def test_a_module_that_cannot_be_imported_is_told_by_its_error(self, tmp_path: Path, text: str, said: str) -> None:
        (tmp_path / "judged.py").write_text(text)
        before = set(sys.modules)
        with pytest.raises(DefinitionError) as wrong:
            define("good", {"code": f"{tmp_path / 'judged.py'}:good"})
        assert said in str(wrong.value)
        assert "secret@" not in str(wrong.value)
        assert not [name for name in set(sys.modules) - before if name.startswith("judged_")]


class TestInstalled:
    def install(self, folder: Path, distribution: str, points: str, source: str = "") -> None:
        info = folder / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tracejudge.judges]\n{points}\n")
        (folder / f"{distribution}.py").write_text(source or TestVersion.SOURCE.format("(time_limit_s=60)", "True"))

    @pytest.fixture(autouse=True)
    def _anew(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.syspath_prepend(tmp_path)
        installed.cache_clear()
        yield
        installed.cache_clear()

    def test_a_judge_of_a_distribution_appears_by_the_name_of_its_entry_point(self, tmp_path: Path) -> None:
        self.install(tmp_path, "ourjudges", "is_good = ourjudges:good")
        assert "is_good" in metadata.entry_points(group="tracejudge.judges").names
        (assessment,) = judged(installed()["is_good"], trace())
        assert assessment.scores == (verdict.Score("is_good", 1.0, 1.0, passed=True),)
        assert installed() is installed()

    @pytest.mark.parametrize(
        ("points", "complaint"),
        [
            ("good = wrong:bad", "wrong: tracejudge.judges.good: wrong:bad: wrong defines no bad; known are good"),
            ("good = wrong.er:bad", "wrong: tracejudge.judges.good: wrong.er:bad: cannot be imported (ModuleNotFound"),
            ("Good-One = wrong:good", "wrong: tracejudge.judges.Good-One: a judge cannot be called Good-One"),
        ],
    )
    def test_a_mistake_names_the_distribution(self, tmp_path: Path, points: str, complaint: str) -> None:
        self.install(tmp_path, "wrong", points)
        with pytest.raises(DefinitionError) as wrong:
            installed()
        assert str(wrong.value).startswith(complaint)

    def test_two_distributions_cannot_share_a_name(self, tmp_path: Path) -> None:
        self.install(tmp_path, "ours1", "good = ours1:good")
        self.install(tmp_path, "ours2", "good = ours2:good")
        with pytest.raises(DefinitionError, match="another distribution has a judge of this name"):
            installed()

    def test_a_built_in_judge_keeps_its_name(self, tmp_path: Path) -> None:
        self.install(tmp_path, "ours", "safety = ours:good")
        with pytest.raises(DefinitionError) as wrong:
            installed(frozenset({"safety"}))
        assert str(wrong.value).startswith("ours: tracejudge.judges.safety: that is the name of a built-in judge")


def test_a_judge_in_code_gets_every_trace_as_it_is() -> None:
    # Half a surrogate pair comes in no trace: it is no JSON.
    traces = [attack for name, attack in ATTACKS.items() if name != "lone surrogates"]
    expected = ["https://" in attack.output for attack in traces]
    assessments = judged(of_file("has_link"), *traces)
    assert [assessment.scores[0].passed for assessment in assessments] == expected


def test_a_judge_in_python_judges_a_conversation() -> None:
    @judge(unit="session", version="1")
    def short(conversation: Trace) -> bool:
        return len(turns(conversation)) <= 4

    assert (short.unit, short.needs) == ("session", (AnyOf(("messages", "input", "output")),))
    assert short(join([trace("B", input="A?"), trace("", input="C?")]))
    assert short.fingerprint != judge(needs=short.needs, version="1")(short.function).fingerprint
    made = make("short", "a:b", Loaded(short, None, b""), asks="Is it short?")
    assert (made.unit, made.missing(trace("B"))) == ("session", None)
    for arguments, message in (
        ({"unit": "day"}, 'unit must be "trace" or "session"'),
        ({"unit": "session", "needs": ("input", ("context", "spans"))}, "needs: a conversation has no context"),
    ):
        with pytest.raises(CodeError, match=re.escape(message)):
            judge(**arguments)
