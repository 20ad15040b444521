"""`make mutants`: what is changed, where, and what is not; whether a change is noticed is shown on a small tree."""

import subprocess
from pathlib import Path

import mutants
import pytest
from mutants import PARTS, Part, draw, files, mutants_of_lua, mutants_of_python

PYTHON = '''
"""Text of 3 lines."""
def decide(value: "int" = 1, *, until: float | None = None) -> bool:
    if ready(value):
        log.info("ready %d", 1)
    total += value * 2
    send(total)
    text = f"{total + 1}" + "2" * 3
    return not (value < 10 and min(value, 2) is None)
'''
CHANGES = [
    (3, "1 -> 2"),
    (4, "ready(value) -> not ready(value)"),
    (5, "1 -> 2"),
    (6, "total += value * 2 -> pass"),
    (6, "value * 2 -> value / 2"),
    (6, "2 -> 3"),
    (7, "send(total) -> pass"),
    (8, "3 -> 4"),
    (9, "not (value < 10 and min(value, 2) is None) -> value < 10 and min(value, 2) is None"),
    (9, "value < 10 and min(value, 2) is None -> value < 10 or min(value, 2) is None"),
    (9, "value < 10 -> value <= 10"),
    (9, "10 -> 11"),
    (9, "min(value, 2) is None -> min(value, 2) is not None"),
    (9, "min(value, 2) -> max(value, 2)"),
    (9, "2 -> 3"),
]
LUA = """-- not 1 == 1
redis.call('SET', KEYS[1], 'v2')
if not found and a < 7 then return math.min(a, b) end -- 3
"""
MOVED = "def moved():\n    return 7\n"


def git(tree: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    subprocess.run(["git", *identity, *arguments], cwd=tree, check=True)


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message=change")


def test_python_is_changed_where_it_runs() -> None:
    result = list(mutants_of_python(PYTHON))
    assert [(line, change) for line, change, _ in result] == CHANGES
    for line, change, text in result:
        differing = [
            number
            for number, pair in enumerate(zip(PYTHON.split("\n"), text.split("\n"), strict=True), 1)
            if pair[0] != pair[1]
        ]
        assert differing == [line], change


def test_lua_is_changed_outside_of_comments_and_texts() -> None:
    lines = LUA.splitlines()
    assert [(line, text.splitlines()[line - 1].partition(" --")[0]) for line, _, text in mutants_of_lua(LUA)] == [
        (2, "do end"),
        (2, "redis.call('SET', KEYS[2], 'v2')"),
        (3, "if not found and a <= 7 then return math.min(a, b) end"),
        (3, "if not found or a < 7 then return math.min(a, b) end"),
        (3, "if not found and a < 7 then return math.max(a, b) end"),
        (3, "if found and a < 7 then return math.min(a, b) end"),
        (3, "if not found and a < 8 then return math.min(a, b) end"),
    ]
    assert all(text.splitlines()[0] == lines[0] for _, _, text in mutants_of_lua(LUA))


def test_every_pattern_of_the_table_matches_and_the_mutants_are_drawn_each_time_alike() -> None:
    first = [place for name in PARTS for place in draw("HEAD", name)]
    assert len(first) == len(set(first)) == 160
    assert first == [place for name in PARTS for place in draw("HEAD", name)]
    assert all(files(mutants.ROOT, part.tests) for part in PARTS.values())


def test_a_pattern_that_matches_nothing_ends_it() -> None:
    with pytest.raises(SystemExit, match=r"the pattern worker/gone/\*\.py matches no file; adapt the table of parts"):
        files(mutants.ROOT, "worker/*.py worker/gone/*.py")


@pytest.mark.slow("runs of pytest on copies")
def test_a_change_is_caught_or_survives_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "tree"
    for package in ("worker", "judges", "deploy", "producers/tracejudge", "tests"):
        (tree / package).mkdir(parents=True)
        (tree / package / "__init__.py").touch()
    source = "MOST = 3\nENDLESS = 5\nwhile ENDLESS > 5:\n    pass\n"
    (tree / "worker" / "limit.py").write_text(source)
    (tree / "worker" / "moved.py").write_text(f"{MOVED}\ndef gone():\n    return 8\n")
    (tree / "tests" / "test_limit.py").write_text(
        "from worker.limit import MOST\n\ndef test_it():\n    assert MOST == 3\n"
    )
    git(tree, "init", "--quiet")
    commit(tree)
    (tree / "worker" / "limit.py").rename(tree / "worker" / "bound.py")
    commit(tree)
    (tree / "worker" / "moved.py").write_text("")
    (tree / "judges" / "other.py").write_text(f"# it moved\n\n{MOVED}")
    (tree / "worker" / "limit.py").write_text("from worker.bound import MOST\n")
    commit(tree)
    monkeypatch.setattr(mutants, "ROOT", tree)
    monkeypatch.setattr(mutants, "PARTS", {"limit": Part(6, "worker/*.py", "tests/test_*.py")})
    monkeypatch.setattr(mutants, "_SPARE_S", 3)
    monkeypatch.setattr(mutants, "RECORDED", 1.0)
    monkeypatch.setattr("sys.argv", ["mutants", "--commit", "HEAD~2", "--root", str(tree)])

    assert mutants.main() == 1

    output = capsys.readouterr().out
    assert "unchanged   limit       passes" in output
    assert "gone  limit  worker/moved.py:gone:8 -> 9\n" in output
    assert "caught      limit       worker/bound.py:1  3 -> 4  (tests/test_limit.py::test_it, " in output
    assert "caught      limit       worker/bound.py:2  5 -> 6  (the tests do not end, " in output
    assert "survived    limit       worker/bound.py:3  5 -> 6  (" in output
    assert "survived    limit       judges/other.py:4  7 -> 8  (" in output
    assert "caught 3 of 5 (60%); recorded: 100%" in output
    assert (tree / "worker" / "bound.py").read_text() == source
