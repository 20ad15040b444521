"""Every block of every page but commands: configuration is loaded, data is read, Python runs."""

import configparser
import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from clients.replay import not_sent
from pages import ELSEWHERE, PAGES, ROOT, File, blocks, needs, of_kind, read_page
from redis import Redis
from support.cases import each_case
from support.model_server import ModelServer

import tracejudge
from judges.custom import define
from judges.models.pairs import Description
from judges.parsing.rows import as_trace
from tracejudge import Trace
from tracejudge.dialects.own_tables import table_of
from worker.core.config.loading import load

KINDS = {"console", "ini", "java", "js", "json", "lua", "mermaid", "promql", "python", "sh", "text", "toml", "yaml"}


def test_every_block_names_its_kind() -> None:
    unknown = [(name, block) for name, text in PAGES.items() for block in blocks(text) if block.kind not in KINDS]
    assert unknown == []
    assert all((ROOT / test).exists() for test in ELSEWHERE.values())


# --- data ---


class AnyVariable(defaultdict[str, str]):
    """An environment in which each variable that a page names is set."""

    def __missing__(self, name: str) -> str:
        if name.startswith(("TRACEJUDGE_", "OTEL_")):
            raise KeyError(name)
        return "a-secret-of-24-characters"

    def get(self, name: str, default: Any = None) -> Any:
        return default if name.startswith(("TRACEJUDGE_", "OTEL_")) else self[name]


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


def test_other_blocks_are_valid() -> None:
    for _, text in of_kind("yaml"):
        assert yaml.safe_load(text)
    for _, text in of_kind("ini"):
        unit = configparser.ConfigParser(strict=False)
        unit.read_string(text)
        assert unit.sections()


@pytest.mark.slow("needs promtool")
def test_queries_are_valid(tmp_path: Path) -> None:
    needs("promtool")
    rules = [{"record": f"block:{number}", "expr": text} for number, (_, text) in enumerate(of_kind("promql"))]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "blocks", "rules": rules}]}), encoding="utf-8")
    checked = subprocess.run(["promtool", "check", "rules", path], check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


# --- Python ---

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


@each_case(
    ("name", "text"),
    [
        (step.name, step.text)
        for step in read_page(PAGES["docs/changing.md"])
        if isinstance(step, File) and step.name.endswith(".py")
    ],
)
def test_files_of_contributors_pass_the_linter(name: str, text: str) -> None:
    # Their folders do not exist, so their imports are taken for foreign ones.
    command = [sys.executable, "-m", "ruff", "check", "--quiet", "--ignore=INP001,I001", "--stdin-filename", name, "-"]
    linted = subprocess.run(command, input=text, cwd=ROOT, capture_output=True, text=True, check=False)
    assert linted.stdout == ""


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
