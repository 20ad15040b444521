"""Every block of every page but commands: configuration is loaded, data is read, Python runs, as does new code."""

import configparser
import io
import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import yaml
from clients.replay import not_sent
from pages import (
    ELSEWHERE,
    PAGES,
    ROOT,
    AnyVariable,
    Command,
    File,
    blocks,
    matches,
    needs,
    of_kind,
    read_page,
    table,
)
from redis import Redis
from support.cases import each_case
from support.commands import Run
from support.endpoint import ChatEndpoint
from support.lazy import Lazy
from support.model_server import ModelServer
from support.replies import Call, Reply, answers_json, yes_no
from support.stages import Keyspace, rules_of

import tracejudge
import worker.features
from judges.custom import define
from judges.models.pairs import Description
from judges.models.registry import PROVIDERS
from judges.parsing.rows import as_trace
from tracejudge import Trace
from tracejudge.dialects.own_tables import table_of
from worker import installed as rows
from worker.core import features
from worker.core.config.loading import load
from worker.core.config.reading import key_types
from worker.core.queue.ledger import Ledger
from worker.core.storage.client import script_sources
from worker.core.telemetry.metrics import Metrics

KINDS = {"console", "ini", "java", "js", "json", "lua", "mermaid", "promql", "python", "sh", "text", "toml", "yaml"}


def test_every_block_names_its_kind_and_is_valid() -> None:
    unknown = [(name, block) for name, text in PAGES.items() for block in blocks(text) if block.kind not in KINDS]
    assert unknown == []
    assert all((ROOT / test).exists() for test in ELSEWHERE.values())
    for _, text in of_kind("yaml"):
        assert yaml.safe_load(text)
    for _, text in of_kind("ini"):
        unit = configparser.ConfigParser(strict=False)
        unit.read_string(text)
        assert unit.sections()


DECIDER = """
[models.decider]
provider = "decisions"
base_url = "https://decisions.example.com/v1"
model = "decider-1"
"""
"""The model that a calibration is of."""


@each_case("text", [text for page, text in of_kind("toml") if page != "docs/troubleshooting.md"])
def test_configuration_is_accepted(text: str, tmp_path: Path) -> None:
    found = tomllib.loads(text)
    if "instructions" in found:
        assert define("mine", found).version
    elif "prefixes" in found:
        assert table_of(found).name == found["name"]
    elif "task" in found:
        assert msgspec.convert(found, Description).max_tokens > 0
    else:
        before = DECIDER if "calibrations" in found else ""
        (tmp_path / "tracejudge.toml").write_text(before + text, encoding="utf-8")
        if "canary_file" in found:
            (tmp_path / found["canary_file"]).write_text(json_blocks("docs/labels.md")[-1], encoding="utf-8")
        load(AnyVariable(), str(tmp_path / "tracejudge.toml"), needs_rules="rules" in found)


def json_blocks(page: str) -> list[str]:
    return [block.text for block in blocks(PAGES[page]) if block.kind == "json"]


@each_case(("page", "text"), of_kind("json"))
def test_data_can_be_read(page: str, text: str) -> None:
    for line in text.splitlines() if text.startswith("{") and "\n{" in text else [text]:
        row = json.loads(line)
        if "prefixes" in row:
            assert len(text.splitlines()) < 40, page
            assert table_of(row).name == row["name"], page
        elif "output" in row:
            fields = {"trace_id": "t", "service": "s", **as_trace(row)}
            assert msgspec.convert(fields, Trace).output == row["output"], page


@pytest.mark.slow("needs promtool")
def test_queries_are_valid(tmp_path: Path) -> None:
    needs("promtool")
    rules = [{"record": f"block:{number}", "expr": text} for number, (_, text) in enumerate(of_kind("promql"))]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "blocks", "rules": rules}]}), encoding="utf-8")
    checked = subprocess.run(["promtool", "check", "rules", path], check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


PRELUDES: Mapping[str, str] = {
    "README.md": """
def search(question): return ["Tea is hot."]
def ask_model(question, documents): return "Yes."
""",
    "docs/privacy.md": "import tracejudge\ndef without_customer_numbers(text): return text",
    "docs/gateway.md": "def answer_question(question): return 'Yes.'",
    "docs/opentelemetry.md": "def ask(question): return 'In Bern.'",
}
NO_TRACE = {"docs/privacy.md", "docs/statistics.md"}


FRAMEWORKS = "docs/opentelemetry.md"  # of its Python, what stands before the first framework
FIRST_FRAMEWORK = "## LangChain"
SCRIPTS = "docs/testing-judges.md"  # test_python_page.py answers in place of the model
PUBLISHING = "docs/publishing.md"  # test_publishing_page.py compares what is published as well


@pytest.mark.parametrize("page", sorted({page for page, _ in of_kind("python")} - {SCRIPTS, PUBLISHING}))
def test_python_runs(page: str, redis: Redis, redis_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_REDIS_URL", redis_url)
    monkeypatch.setenv("TRACEJUDGE_PREFIX", prefix)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    names: dict[str, Any] = {}
    with ModelServer() as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{endpoint.root_url}/v1")
        try:
            exec(compile(PRELUDES.get(page, ""), "prelude", "exec"), names)  # noqa: S102 - our own
            shown = PAGES[page].partition(FIRST_FRAMEWORK)[0] if page == FRAMEWORKS else PAGES[page]
            for text in (block.text for block in blocks(shown) if block.kind == "python"):
                real = text.replace("redis://localhost:6379/0", redis_url)
                exec(compile(real, page, "exec"), names)  # noqa: S102 - our own page
            if page == "docs/gateway.md":
                assert names["handler"]({"question": "Is tea hot?"}, None) == "Yes."
            if "answer" in names and page == "README.md":
                assert names["answer"]("Is tea hot?") == "Yes."
            assert tracejudge.flush()
        finally:
            tracejudge.shutdown()
            if "client" in names:
                names["client"].close()
    assert (redis.xlen(f"{prefix}:traces") > 0) == (page not in NO_TRACE)


def test_frameworks_are_instrumented_as_in_the_recordings() -> None:
    """The packages of frameworks are not installed here; `make test-long` runs the recorded programs with them."""
    clients = ROOT / "tests" / "clients"
    files = (path for ending in ("py", "mjs", "json") for path in clients.glob(f"*.{ending}"))
    programs = "\n".join(path.read_text(encoding="utf-8") for path in files).replace("harness.", "")
    # What `client.py` does with the instrumentors of its table.
    for module, kind in re.findall(r'"instrumentor": "([\w.]+):(\w+)"', programs):
        programs += f"\nfrom {module} import {kind}\n{kind}().instrument(tracer_provider=provider)"
        programs += f"\n{kind}().instrument()"  # by the global provider, which `harness` sets

    # The page has the gateway's address, and Langfuse's processor, in place of the arguments of the harness.
    programs = programs.replace("`${root}/v1/traces`", '"http://127.0.0.1:4318/v1/traces"')
    programs = programs.replace("...processors", "new LangfuseSpanProcessor()").replace("export const", "const")

    def is_known(line: str) -> bool:
        form = re.fullmatch(r"from (\S+) import (.+)", line)
        if form is None:
            return line in programs
        return all(re.search(rf"from {form[1]} import .*\b{name}\b", programs) for name in form[2].split(", "))

    text = PAGES[FRAMEWORKS]
    sections = text[text.index(FIRST_FRAMEWORK) :]
    for block in (block for block in blocks(sections) if block.kind in {"python", "js"}):
        assert [line for line in block.text.splitlines() if not is_known(line)] == []
    recorded = re.sub(r"\[[\w,]+\]==", "==", programs)
    assert [name for name in re.findall(r"`([\w-]+==[\d.b]+)`", sections) if f'"{name}"' not in recorded] == []
    table = PAGES["docs/reference/measured/clients.md"]
    assert table.endswith("\n".join(not_sent()) + "\n"), "python -m clients.replay --not-sent"


nbclient, nbformat = Lazy("nbclient"), Lazy("nbformat")
NOTEBOOK = ROOT / "docs" / "notebooks" / "judges.ipynb"


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatEndpoint]:
    """Answer in place of the public endpoint."""

    def answer(call: Call) -> Reply:
        if "polite" in call.text():
            return answers_json({"rationale": "So.", "result": "polite"})
        return yes_no("no" if "Babbage" in call.text() else "yes")

    with ChatEndpoint(answer) as endpoint:
        there = {"base_url": endpoint.base_url, "api_key_env": "OPENAI_API_KEY"}
        monkeypatch.setitem(PROVIDERS, "openai", PROVIDERS["openai"]._replace(hosted=there))
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        yield endpoint


def test_the_code_of_the_page_runs(hosted: ChatEndpoint) -> None:
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with redirect_stdout(printed):
        for block in (block for block in blocks(PAGES[SCRIPTS]) if block.kind == "python"):
            exec(compile(block.text, "docs/testing-judges.md", "exec"), names)  # noqa: S102 - our own page
    assert printed.getvalue().splitlines() == ["1.0 True It is so.", "True polite", "[True, False] True", "0.5"]
    assert {call.headers["authorization"] for call in hosted.calls} == {"Bearer k"}
    assert {call.body["model"] for call in hosted.calls} == {"gpt-6-luna"}


@pytest.mark.slow("runs the documentation's programs")
@pytest.mark.filterwarnings("default")
def test_the_notebook_prints_what_it_shows() -> None:
    shown = nbformat.read(NOTEBOOK, as_version=4)
    ran = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(ran, timeout=100, kernel_name="python3").execute()
    for before, after in zip(shown.cells, ran.cells, strict=True):
        if before.cell_type == "code":
            assert texts(after) == texts(before), f"run the notebook again and commit it: {before.source}"


def texts(cell: Any) -> str:
    return "".join(output.get("text", str(output.get("data"))) for output in cell.outputs)


SHOWN = "tracejudge show 4bf92f"


@pytest.mark.slow("runs the documentation's programs")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # the page forks, and Python 3.12 warns
def test_each_block_publishes_what_is_shown(
    served: Run, redis: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "COLUMNS": "100", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    names, shown = around(), 0
    with ModelServer() as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{endpoint.root_url}/v1")
        try:
            for block in blocks(PAGES[PUBLISHING]):
                if block.kind == "python":
                    exec(compile(block.text, "docs/publishing.md", "exec"), names)  # noqa: S102 - our own page
                elif block.kind == "console" and SHOWN in block.text:
                    assert tracejudge.flush()
                    newest = sent(redis, prefix, b"t")[-1]["trace_id"]
                    (step,) = read_page(f"```console\n{block.text}```\n")
                    assert isinstance(step, Command)
                    ended = served("show", newest)
                    assert matches(step.output, ended.out + ended.err), f"{step.output}\n{ended}"
                    shown += 1
            traces, (feedback,) = sent(redis, prefix, b"t"), sent(redis, prefix, b"f")
        finally:
            tracejudge.shutdown()
            names["client"].close()
    assert shown == PAGES[PUBLISHING].count(SHOWN) > 3
    # Retrievers are spans of their traces, and the forked child publishes the last one.
    names_of_traces = [trace["name"] for trace in traces if "name" in trace]
    assert names_of_traces == ["answer", "stream", "nightly summary", "responses", "answer", "answer"]
    assert traces[-1]["user_id"] == "u-1729"
    assert feedback["trace_id"] == traces[0]["trace_id"]
    assert len({entry[b"p"] for _, entry in entries_of(redis, prefix)}) == 2


def around() -> dict[str, Any]:
    """Make what the page assumes: a retriever, models, and a completion of their client."""

    def pieces(_: str) -> Iterator[SimpleNamespace]:
        yield from (SimpleNamespace(text=text) for text in ("Yes, ", "it is."))

    return {
        "retriever": SimpleNamespace(invoke=lambda _: ["Tea is hot."]),
        "completion": "Yes.",
        "documents": ["Tea is hot.", "Ice is cold."],
        "ask_model": lambda _, found: "Yes." if found else "I do not know.",
        "model": SimpleNamespace(stream=pieces),
        "text": "Long.",
        "summarise": lambda _: "Short.",
    }


def sent(redis: Redis, prefix: str, kind: bytes) -> list[dict[str, Any]]:
    """List the traces or feedback in the stream, the oldest first."""
    return [json.loads(fields[kind]) for _, fields in entries_of(redis, prefix) if kind in fields]


def entries_of(redis: Redis, prefix: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    entries: Any = redis.xrange(f"{prefix}:traces")
    return list(entries)


CHANGING = PAGES["docs/changing.md"]
FILES = {step.name: step.text for step in read_page(CHANGING) if isinstance(step, File)}
CACHED = (features.installed, features.installed_tables, key_types, script_sources)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of the page, installed for one test."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "worker/features/slow/__init__.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(worker.features, "__path__", [*worker.features.__path__, str(tmp_path / "worker/features")])
    (row,) = re.findall(r'The row is `"([\w.]+)",`', CHANGING)
    monkeypatch.setattr(rows, "MODULES", (*rows.MODULES, row))
    for function in CACHED:
        function.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    for function in CACHED:
        function.cache_clear()
    for name in [name for name in sys.modules if name.startswith("worker.features.slow")]:
        del sys.modules[name]


def test_the_feature_of_the_page_works(folder: Path, keyspace: Keyspace) -> None:
    for name, test in runpy.run_path(str(folder / "tests/features/slow/test_slow.py")).items():
        if name.startswith("test_"):
            test()
    config = folder / "tracejudge.toml"
    for text, count in (("", 0), ("slow_verdict_s = 2.0\n", 1)):
        config.write_text(text, encoding="utf-8")
        settings = load({}, str(config), needs_rules=False)
        ledger = Ledger(keyspace.store, settings)
        context = features.TraceHookContext(settings, Metrics(settings), ledger, rules_of(settings))
        assert (
            len(features.build_hooks((feature.after_verdict for feature in features.installed()), context)) == count
        ), text


def test_the_judge_of_the_page_works_and_its_table_has_every_hook() -> None:
    names: dict[str, Any] = {}
    exec(compile(FILES["judges/catalog/politeness.py"], "politeness", "exec"), names)  # noqa: S102 - our own page
    judge = names["JUDGE"]
    for output, result in (("Of course.", "yes"), ("Obviously not, stupid.", "no")):
        trace = Trace(trace_id="1", service="shop", output=output)
        assert judge.heuristic(trace, judge.prompts(trace)[0])["result"] == result
    named = [
        name for row in table(CHANGING, "hook") if row[0].startswith("`") for name in re.findall("`([^`]+)`", row[0])
    ]
    methods = [
        f"{kind.__name__}.{name}"
        for kind in (features.IngestHook, features.Assessor, features.ModelWrapper, features.VerdictHook)
        for name, member in vars(kind).items()
        if callable(member) and not name.startswith("_")
    ]
    hooks = [field.name for field in fields(features.Feature) if field.name not in {"name", "needs"}]
    assert sorted(named) == sorted([*methods, *hooks])


def test_files_of_contributors_pass_the_linter() -> None:
    # Their folders do not exist, so their imports are taken for foreign ones.
    command = [sys.executable, "-m", "ruff", "check", "--quiet", "--ignore=INP001,I001"]
    for name, text in FILES.items():
        if name.endswith(".py"):
            stdin = [*command, "--stdin-filename", name, "-"]
            linted = subprocess.run(stdin, input=text, cwd=ROOT, capture_output=True, text=True, check=False)
            assert linted.stdout == "", name
