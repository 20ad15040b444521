"""Pages that are walked through: files are written, commands run and print what is shown, tables are the code's."""

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
import yaml
from pages import (
    ELSEWHERE,
    PAGES,
    ROOT,
    WALKED,
    Command,
    File,
    background,
    matches,
    mistakes,
    needs,
    read_page,
    run,
    shell_lines,
    table,
    write_files,
)
from support.cases import each_case
from support.commands import Run
from support.processes import free_port, wait_until
from support.tables import read_table

from judges.catalog import catalogue
from judges.core.combine import Combine
from judges.core.judge import AnsweredPrompt, Limits
from judges.core.prompt import Prompt
from judges.custom import define
from judges.custom.definition import _MAX_TEXT_CHARS, MAX_BYTES
from judges.custom.scales import _MAX_LABEL_CHARS, _MAX_LABELS
from judges.custom.template import _MAX_DOCUMENTS
from judges.custom.variables import _VARIABLES
from judges.features.python.api import judge as mark
from judges.registry import check_table, load_judges, read_judge
from tracejudge import Trace
from worker.base.embedded import EmbeddedRedis
from worker.core.config.loading import load
from worker.core.config.settings import Settings
from worker.features.panels.feature import MAX_MODELS_PER_RULE

PAGE = "\n".join(PAGES[page] for page in WALKED)
STEPS = read_page(PAGE)
COMMANDS = [(number, step) for number, step in enumerate(STEPS) if isinstance(step, Command)]
FIRST = dict(reversed([(tuple(step.line.split()[:2]), number) for number, step in COMMANDS]))
"""The place of the first use of each command; `make test` runs these only."""
FILES = {step.name: step.text for step in STEPS if isinstance(step, File)}
TRACE = Trace(trace_id="t", service="s", input="Is it?", output="It is.")
SHOWN = {
    **dict.fromkeys(("docs/coming-from.md", "docs/labels.md"), ""),
    "docs/troubleshooting.md": "redis://127.0.0.1:1/0",
}
"""Other pages whose commands print what is shown, each with the address of Redis; empty is the server of the tests."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder with all files of the page."""
    write_files(STEPS, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_shown(command: Command, ended: Any) -> None:
    """Check how a command ended, and what it printed."""
    assert ended.code == command.code, f"{command.line}\n{ended.output}"
    shown = f"{command.line}\nshown:\n{command.output}\ncame:\n{ended.output}"
    assert matches(command.output, ended.output), shown


def test_whatever_stands_in_a_fence_is_written_or_run() -> None:
    assert mistakes(PAGE) == []
    assert len(FILES) == sum(isinstance(step, File) for step in STEPS), "each name stands once"
    # The page on publishing is run with its Python.
    with_output = {page for page, text in PAGES.items() if "```console" in text}
    assert with_output - {*ELSEWHERE, *SHOWN, *WALKED} == {"docs/publishing.md"}


@pytest.mark.parametrize(
    ("number", "command"),
    [
        pytest.param(
            *(number, command),
            id=command.line,
            marks=[] if number in FIRST.values() else pytest.mark.slow("a command that ran before"),
        )
        for number, command in COMMANDS
    ],
)
def test_a_command_prints_what_the_page_shows(tmp_path: Path, number: int, command: Command) -> None:
    before = STEPS[: number + 1]
    write_files(before, tmp_path)
    check_shown(command, run(command.line, tmp_path))


@pytest.mark.parametrize("page", SHOWN)
def test_a_page_prints_what_it_shows(page: str, tmp_path: Path, redis_url: str, prefix: str) -> None:
    steps = read_page(PAGES[page])
    write_files(steps, tmp_path)
    shown = [step for step in steps if isinstance(step, Command)]
    for command in shown:
        environment = {"TRACEJUDGE_REDIS_URL": SHOWN[page] or redis_url, "TRACEJUDGE_PREFIX": prefix}
        check_shown(command, run(re.sub(r" *# exit code \d+$", "", command.line), tmp_path, env=environment))
    assert shown


@pytest.mark.usefixtures("folder")
def test_configurations_and_judges_of_the_pages_can_be_loaded() -> None:
    for name in (name for name in FILES if name.endswith(".toml") and "/" not in name):
        assert ("[[rules]]" in FILES[name]) == (load({}, name).rules != Settings().rules), name
    own = [Path(name) for name in FILES if name.startswith("judges.d/") and name.endswith(".toml")]
    for path in own:
        check_table(read_judge(path))
    settings = load({}, "production.toml")
    assert sorted(settings.judges) == sorted(path.stem for path in own)
    assert {judge for rule in settings.rules for judge in rule.judges} <= settings.judges.keys()


@pytest.mark.slow("mypy")
@pytest.mark.timeout(600)
def test_the_python_of_the_page_passes_a_strict_type_check(folder: Path) -> None:
    python = [name for name in FILES if name.endswith(".py")]
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        f"--cache-dir={ROOT}/.mypy_cache/pages",
        *python,
    ]
    checked = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)
    assert (checked.returncode, checked.stdout) == (0, "Success: no issues found in 1 source file\n")


@pytest.mark.usefixtures("folder")
def test_tables_and_remarks_of_the_page_are_those_of_the_code() -> None:
    rows = table(PAGE, "variable")
    names = [row[0].strip("`{} ") for row in rows]
    assert sorted(names) == sorted([*_VARIABLES, "tags.NAME"])
    for name, (_, _, needed) in zip(names, rows, strict=True):
        judge = define("mine", {"instructions": f"Look at {{{{ {name} }}}}."})
        assert judge.needs_in_words == (needed.partition(", unless")[0],), name
    remarks = 0
    for block in re.finditer(r"\[judges\.(\w+)\]\n(.+?)(?=\n\n|\Z)", FILES["results.toml"], re.DOTALL):
        if said := re.search(r"(\w+) has the value ([\d.]+)", block[2]):
            judge, rating = load_judges(load({}, "results.toml").judges)[block[1]], said[1]
            result = int(rating) if rating.isdigit() else rating
            answer = judge.read(json.dumps({"rationale": "So.", "result": result}))
            (score,) = judge.score(TRACE, [AnsweredPrompt(Prompt("", ()), answer)]).scores
            assert (score.value, score.passed) == (float(said[2]), True), block[1]
            remarks += 1
    assert remarks > 1
    forms = {*re.findall(r"`(\w+)`", PAGE[PAGE.index("`as` may be") :].partition(". ")[0])} - {"as"}
    template = {"file": "facts.yaml", "text": FILES["judges.d/facts.yaml"]}
    assert forms
    for form in forms:
        assert define("mine", {"template": template, "answer": {"as": form}}).metrics, form
    named = [name for row in table(PAGE, "`combine`") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(get_args(Combine))
    limits = Limits()
    assert dict(table(PAGE, "what")) == {
        "a judge file, a template": f"{MAX_BYTES >> 20} MiB",
        "instructions, a prompt": f"{_MAX_TEXT_CHARS:,} characters",
        "labels": f"2 to {_MAX_LABELS}, of up to {_MAX_LABEL_CHARS} characters",
        "whole traces: rounds, tokens": f"{limits.max_rounds} and {limits.max_tokens:,} unless the file says so",
        "templates about one document: documents of a trace": f"{_MAX_DOCUMENTS}",
        "code: time for one trace": f"{mark(lambda _: True).time_limit_s:g} s; up to an hour with `time_limit_s`",
        "models of a rule": f"{MAX_MODELS_PER_RULE}",
    }


def test_what_the_page_says_makes_a_new_version_and_nothing_else(folder: Path) -> None:
    facts = FILES["judges.d/facts.yaml"]
    texts = {"FACTS": facts, "READ": facts.replace("Go through", "Read"), "NEWER": facts.replace('"1.0"', '"2.0"')}

    def version(fields: Any, name: str = "mine") -> str:
        if file := fields.get("template"):
            fields = {**fields, "template": {**file, "text": texts[file["text"]]}}
        return define(name, fields).version

    data = read_table(__file__, "versions")
    for kind in ("others", "same"):
        for what, (base, change) in data[kind].items():
            before = data["judges"][base]
            assert (version(before) == version({**before, **change})) is (kind == "same"), what
            assert version(before) != version(before, "other"), what
    # A judge in code changes with its file alone.
    code = {"code": f"{folder}/judges.d/shop.py:numbers_sourced"}
    assert version(code) == version({**code, "time_limit_s": 9, "processes": 2})
    for name, more in (("same", ""), ("other", "\n")):
        (folder / f"{name}.py").write_text(f"{FILES['judges.d/shop.py']}{more}", encoding="utf-8")
        moved = version({"code": f"{folder}/{name}.py:numbers_sourced"})
        assert (version(code) == moved) is (name == "same"), name


@pytest.mark.slow("runs the documentation's programs")
def test_each_judge_that_is_named_for_another_tool_scores_the_row_of_that_tool(run: Run) -> None:
    page = PAGES["docs/coming-from.md"]
    assert mistakes(page) == []
    write_files(read_page(page), Path.cwd())
    own = re.findall(r"^\[judges\.(\w+)\]$", page, re.MULTILINE)
    wrong, named = [], set()
    for section in page.split("\n## ")[3:]:  # after what the product is, and how tests are brought
        tool, (file,) = section.partition("\n")[0], [step.name for step in read_page(section) if isinstance(step, File)]
        rows = [line.strip("|").rsplit("|", 1) for line in section.splitlines() if line.startswith("| ")][2:]
        judges = {name for _, judge in rows for name in re.findall(r"(?<!\[)`(\w+)`", judge)}
        assert len(judges) >= 6, tool
        wrong += [f"{tool}: there is no judge {name}" for name in judges - {*catalogue(), *own}]
        wrong += [
            f"{tool}: {cells} names no judge and no page" for cells in rows if not re.search(r"`\w+`|\]\(", cells[1])
        ]
        options = [word for name in sorted(judges & {*catalogue(), *own}) for word in ("--judge", name)]
        ended = run("evaluate", file, *options, "--config", "coming.toml", "--output", "-")
        outcomes = {line["judge"]: line.get("reason", line["outcome"]) for line in ended.lines}
        wrong += [f"{tool}: {name} {outcomes.get(name)}" for name in judges if outcomes.get(name) != "scored"]
        named |= judges
    assert not wrong, "\n".join(wrong)
    assert named >= {*own}, "each judge of the page is in a table"


BEFORE = {
    "python3.11 -m venv venv && . venv/bin/activate": "tests run in an environment that is there",
    "pip install ./tracejudge/producers './tracejudge[board]'": "it needs the network; .ci/run installs the same",
    "mkdir shop && cd shop": "it is the folder of the test",
}


@pytest.mark.slow("Prometheus raises the alert after a minute of the monitor")
@pytest.mark.timeout(300)
def test_the_tutorial_leads_to_its_alert(tmp_path: Path) -> None:
    needs("prometheus", "promtool")
    (tmp_path / "tracejudge").symlink_to(ROOT)
    folder = tmp_path / "shop"
    with ExitStack() as ends:
        redis = ends.enter_context(EmbeddedRedis())
        worker, prometheus, board, gateway = (free_port() for _ in range(4))
        places = {"localhost:9808": f"localhost:{worker}", "localhost:9090": f"localhost:{prometheus}"}
        places |= {"redis://localhost:6379/0": redis.url, "tracejudge demo\n": "tracejudge demo --seconds 10\n"}
        # A shorter demo, with less of all.
        text = PAGES["docs/tutorial.md"].replace("at 12.5 s", "at 5 s").replace("640 traces", "256 traces")
        for shown, real in places.items():
            assert shown in text
            text = text.replace(shown, real)
        lines = shell_lines(text)
        assert lines[: len(BEFORE)] == list(BEFORE)
        start_all, start_prometheus, query = lines[len(BEFORE) :]
        env = {"TRACEJUDGE_REDIS_URL": redis.url, "TRACEJUDGE_METRICS_PORT": str(worker)}
        steps = read_page(text)
        write_files(steps, folder)
        options = f" --board-port {board} --gateway-port {gateway}"
        ends.enter_context(background(start_all + options, folder, env))
        for step in (each for each in steps if isinstance(each, Command)):

            def shows(step: Command = step) -> bool:
                ended = run(step.line, folder, env=env)
                return ended.code == step.code and matches(step.output, ended.output)

            if not shows():  # verdicts arrive a moment later; what publishes is never run twice
                assert not step.line.startswith("python"), run(step.line, folder, env=env)
                wait_until(shows, what=step.line)
            if step.line.startswith("cp "):
                shorten(folder)
                options = f" --web.listen-address=127.0.0.1:{prometheus}"
                ends.enter_context(background(start_prometheus + options, folder, env))
        (alert,) = re.findall(r"^```text\n(ALERTS.*?)^```$", text, re.MULTILINE | re.DOTALL)
        # The page's command, a program of its own, only once there is something to find.
        firing = f"http://127.0.0.1:{prometheus}/api/v1/query?query=ALERTS{{alertstate='firing'}}"
        wait_until(lambda: "TraceJudgeObjectiveBurnFast" in page_of(firing), what=query, timeout_s=150)
        assert matches(alert, run(query, folder).output)
        wait_until(lambda: "shop-bot" in page_of(f"http://127.0.0.1:{board}"), what="the board")


def shorten(folder: Path) -> None:
    """Evaluate the rules each second, and wait a second where they wait minutes."""
    for path in [folder / "prometheus.yml", *(folder / "rules").glob("*.yaml")]:
        text = re.sub(r"^( *(?:interval|\w+_interval|for): ).*$", r"\g<1>1s", path.read_text(), flags=re.MULTILINE)
        path.write_text(text)


def page_of(url: str) -> str:
    try:
        return httpx.get(url).text
    except httpx.TransportError:
        return ""


FOLDER = ROOT / "docs/examples/ci"
ROW = '{{"trace_id": "{}", "input": "When?", "output": "{}", "context": ["Parcels leave on Monday."]}}\n'
GOOD, BAD = "Parcels leave on Monday.", "Unicorns rain from purple clouds."


def commands_of(name: str) -> list[str]:
    """Return the commands from the answers to the verdicts, those before and after them left out."""
    document = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    if name == "gitlab.yml":
        return ["\n".join(map(str, document["judge answers"]["script"][2:]))]
    steps = {step.get("name"): step.get("run") for step in document["jobs"]["judge"]["steps"]}
    return [steps["Judge"], steps["Keep the verdicts of main"]]


@each_case(
    ("name", "schema", "options"),
    [("github.yml", "github-workflows", []), ("gitlab.yml", "gitlab-ci", ["--data-transform", "gitlab-ci"])],
)
def test_a_workflow_follows_its_schema(name: str, schema: str, options: list[str]) -> None:
    # Without the grammar of addresses, an optional part that takes several seconds of CPU to load.
    program = "import sys; sys.modules['rfc3987_syntax'] = None; from check_jsonschema import main; main()"
    check = [sys.executable, "-c", program, "--builtin-schema", f"vendor.{schema}", *options, FOLDER / name]
    checked = subprocess.run(check, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow("five runs of `tracejudge evaluate`, whose gate `tests/features/lab` tests as a command")
@pytest.mark.parametrize("name", ["github.yml", "gitlab.yml"])
def test_a_workflow_gates_a_release(name: str, tmp_path: Path) -> None:
    (tmp_path / "tracejudge.toml").write_text('[models.default]\nprovider = "lexical"\n', encoding="utf-8")
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TRACEJUDGE_CONFIG": "tracejudge.toml",
        "HOME": str(tmp_path),
        **dict.fromkeys(("CI_COMMIT_BRANCH", "CI_DEFAULT_BRANCH"), "main"),
    }
    ends = []
    answered = ([GOOD] * 60, [GOOD] * 30 + [BAD] * 30, [GOOD] * 5, [BAD] * 60, [GOOD] * 60)
    # The second run, with answers that nothing supports, is compared with the first, which was kept; then come too few.
    # Those of another judge are refused as a baseline, and replaced.
    for answers in answered if name == "github.yml" else answered[:3]:
        if answers[0] == BAD:
            other = (tmp_path / "before.jsonl").read_text(encoding="utf-8")
            other = other.replace('"judge_model":"', '"judge_model":"other')
            (tmp_path / "before.jsonl").write_text(other, encoding="utf-8")
        rows = (ROW.format(number, answer) for number, answer in enumerate(answers))
        (tmp_path / "answers.jsonl").write_text("".join(rows), encoding="utf-8")
        (tmp_path / "verdicts.jsonl").unlink(missing_ok=True)
        shells = [["bash", "-e", "-c", script] for script in commands_of(name)]
        where = {"cwd": tmp_path, "env": environment, "capture_output": True}
        ended, *_ = (subprocess.run(each, check=False, **where) for each in shells)  # type: ignore[call-overload]
        summary = (tmp_path / "summary.md").read_text(encoding="utf-8").splitlines()
        ends.append((ended.returncode, summary[0].rpartition(" ")[2], "points" in summary[3]))
    begin = [(0, "passed", False), (1, "failed", True)]
    if name == "gitlab.yml":
        assert ends == [*begin, (3, "undecided", True)]
    else:
        assert ends == [*begin, (0, "passed", True), (2, "passed", True), (0, "passed", True)]
