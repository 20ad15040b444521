"""The page and the notebook on judges in Python: their code runs, and the notebook prints what it shows."""

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from support.endpoint import ChatEndpoint
from support.lazy import Lazy
from support.replies import Call, Reply, answers_json, yes_no

from judges.models.registry import PROVIDERS

nbclient, nbformat = Lazy("nbclient"), Lazy("nbformat")
DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "testing-judges.md").read_text(encoding="utf-8")
NOTEBOOK = DOCS / "notebooks" / "judges.ipynb"


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
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    with redirect_stdout(printed):
        for block in blocks:
            exec(compile(block, "docs/testing-judges.md", "exec"), names)  # noqa: S102 - our own page
    assert printed.getvalue().splitlines() == [
        "1.0 True It is so.",
        "True polite",
        "[True, False] True",
        "0.5",
    ]
    assert {call.headers["authorization"] for call in hosted.calls} == {"Bearer k"}
    assert {call.body["model"] for call in hosted.calls} == {"gpt-6-luna"}


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
