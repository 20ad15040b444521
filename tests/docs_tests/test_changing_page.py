"""The judge and the feature of the page work, and the page's table has every hook."""

import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pages import PAGES, File, read_page, table
from support.stage_parts import Keyspace, rules_of

import worker.features
from tracejudge import Trace
from worker import installed as rows
from worker.core.config.loading import load
from worker.core.config.reading import key_types
from worker.core.features import (
    Assessor,
    Feature,
    IngestHook,
    ModelWrapper,
    TraceHookContext,
    VerdictHook,
    build_hooks,
    installed,
    installed_tables,
)
from worker.core.queue.ledger import Ledger
from worker.core.storage.client import script_sources
from worker.core.telemetry.metrics import Metrics

PAGE = PAGES["docs/changing.md"]
FILES = {step.name: step.text for step in read_page(PAGE) if isinstance(step, File)}
CACHED = (installed, installed_tables, key_types, script_sources)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of the page, installed for one test."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "worker/features/slow/__init__.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(worker.features, "__path__", [*worker.features.__path__, str(tmp_path / "worker/features")])
    (row,) = re.findall(r'The row is `"([\w.]+)",`', PAGE)
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
        context = TraceHookContext(settings, Metrics(settings), ledger, rules_of(settings))
        assert len(build_hooks((feature.after_verdict for feature in installed()), context)) == count, text


def test_the_judge_of_the_page_works() -> None:
    names: dict[str, Any] = {}
    exec(compile(FILES["judges/catalog/politeness.py"], "politeness", "exec"), names)  # noqa: S102 - our own page
    judge = names["JUDGE"]
    for output, result in (("Of course.", "yes"), ("Obviously not, stupid.", "no")):
        trace = Trace(trace_id="1", service="shop", output=output)
        assert judge.heuristic(trace, judge.prompts(trace)[0])["result"] == result


def test_the_table_has_every_hook() -> None:
    named = [name for row in table(PAGE, "hook") if row[0].startswith("`") for name in re.findall("`([^`]+)`", row[0])]
    methods = [
        f"{kind.__name__}.{name}"
        for kind in (IngestHook, Assessor, ModelWrapper, VerdictHook)
        for name, member in vars(kind).items()
        if callable(member) and not name.startswith("_")
    ]
    hooks = [field.name for field in fields(Feature) if field.name not in {"name", "needs"}]
    assert sorted(named) == sorted([*methods, *hooks])
