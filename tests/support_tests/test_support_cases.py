"""Loops of cases run all of them, apart from each other, and name each one that fails."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.cases import CasesFailedError, each_case

pytest_plugins = ["pytester"]


def test_every_case_runs_and_every_failure_is_named() -> None:
    seen: list[int] = []

    @each_case("number", [1, 2, 3, 4, 5], ids=["one", "two", "three", "four", "five"])
    def run(number: int) -> None:
        seen.append(number)
        if number == 3:
            pytest.fail("three is refused")
        if number == 5:
            pytest.skip("five is skipped")
        assert number != 2
        assert number < 4, number

    with pytest.raises(CasesFailedError) as failed:
        run()

    assert seen == [1, 2, 3, 4, 5]
    assert failed.value.message == "4 of 5 cases failed:\n  two\n  three\n  four\n  five\n"
    assert [error.__notes__ for error in failed.value.exceptions] == [["two"], ["three"], ["four"], ["five"]]
    assert "three is refused" in str(failed.value.exceptions[1])


def test_cases_are_named_as_parametrize_names_them_or_by_their_values() -> None:
    named = {
        "name=1, value='a'": each_case("name, value", [(1, "a")]),
        "a name": each_case(["name", "value"], [pytest.param(1, "a", id="a name")]),
        "of 1": each_case(("name", "value"), [(1, "a")], ids=lambda name: f"of {name}"),
        r"\udcff": each_case("name, value", [(1, "a")], ids=["\udcff"]),
    }
    for name, decorate in named.items():

        @decorate
        def run(name: int, value: str) -> None:
            raise AssertionError(name, value)

        with pytest.raises(CasesFailedError) as failed:
            run()
        assert failed.value.exceptions[0].__notes__ == [name]


def test_two_cases_of_one_name_both_run() -> None:
    seen: list[int] = []
    each_case("number", [1, 2], ids=["same", "same"])(_appending(seen))()
    assert seen == [1, 2]


def _appending(seen: list[int]) -> Callable[[int], None]:
    def run(number: int) -> None:
        seen.append(number)

    return run


def test_a_case_leaves_the_next_neither_patches_nor_files_nor_output(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os
        import pytest
        from support.cases import each_case

        @pytest.mark.parametrize("outer", ["x", "y"])
        @each_case("number", range(3))
        @each_case("letter", "ab")
        def test_it(self_made, number, letter, outer, monkeypatch, tmp_path, capsys):
            assert self_made == "made"
            assert "CASE" not in os.environ
            monkeypatch.setenv("CASE", f"{number}{letter}")
            assert list(tmp_path.iterdir()) == []
            (tmp_path / "file").write_text("text")
            assert capsys.readouterr().out == ""
            print("printed")
            assert (outer, number, letter) != ("y", 1, "b")

        class TestInAClass:
            @each_case("number", [1, 2])
            def test_it(self, number):
                assert number

        @pytest.fixture
        def self_made():
            return "made"
        """
    )
    pytester.syspathinsert(Path(__file__).parent.parent)
    result = pytester.runpytest_inprocess("-p", "no:randomly", "-p", "no:xdist")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*1 of 3 cases failed:*", "*number=1*", "*1 of 2 cases failed:*", "*letter='b'*"])


def test_what_could_not_run_as_meant_is_refused() -> None:
    def ends(value: int) -> None:
        assert value

    refused = {
        "no cases": lambda: each_case("value", []),
        "1 values": lambda: each_case("value, other", [(1,)]),
        "2 ids": lambda: each_case("value", [1], ids=["a", "b"]),
        "cannot have marks": lambda: each_case("value", [pytest.param(1, marks=pytest.mark.swallows)]),
        "takes no other": lambda: each_case("other", [1])(ends),
    }
    for message, make in refused.items():
        with pytest.raises((TypeError, ValueError), match=message):
            make()


def test_cases_that_would_share_a_fixture_of_one_test_are_refused(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from support.cases import refuse_shared_state as pytest_collection_modifyitems")
    pytester.syspathinsert(Path(__file__).parent.parent)
    source = """
        import pytest
        from support.cases import each_case

        @pytest.fixture(scope={scope!r}, params=["one"])
        def server(request):
            return request.param

        @each_case("number", [1, 2])
        @pytest.mark.parametrize("other", [1, 2])
        def test_it(server, number, other, monkeypatch, tmp_path, capsys):
            assert server
    """
    options = ("-p", "no:randomly", "-p", "no:xdist")
    for scope, outcome, message in (
        ("function", pytest.ExitCode.USAGE_ERROR, ["*test_it*: its cases would share server; parametrise*"]),
        ("module", pytest.ExitCode.OK, ["*2 passed*"]),
    ):
        pytester.makepyfile(source.format(scope=scope))
        result = pytester.runpytest_inprocess(*options)
        assert result.ret == outcome
        (result.stderr if message[0].startswith("*test") else result.stdout).fnmatch_lines(message)
