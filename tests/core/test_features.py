"""What is installed, and that nothing of it is on the way of a trace unless the configuration asks for it."""

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec import structs
from support.key_names import built_names, spaces_of_keys
from support.stages import Keyspace, make_trace, rules_of, settings_of

import worker
from tracejudge import Trace
from worker.base.monitor.gauges import Watch
from worker.core import features
from worker.core.config.settings import Settings
from worker.core.features import (
    Feature,
    IngestHook,
    TraceHookContext,
    VerdictHook,
    build_hooks,
    find_overrides,
    find_single,
    import_attribute,
    installed,
)
from worker.core.queue.ledger import Ledger
from worker.core.selection.sampling import CompiledRule, Sampler
from worker.core.selection.stream_entry import FeedbackEntry
from worker.core.storage.client import script_sources
from worker.core.telemetry.metrics import MetricTable
from worker.installed import MODULES


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Returns the names of what is installed if the folder of a feature is removed."""

    def names(removed: str) -> list[str]:
        with monkeypatch.context() as patch:
            patch.setattr(features, "find_spec", lambda name: None if name.endswith(removed) else find_spec(name))
            return [feature.name for feature in installed.__wrapped__()]

    return names


def test_every_row_is_the_module_of_a_feature(without: Callable[[str], list[str]]) -> None:
    folders = [name for name in MODULES if find_spec(name.rpartition(".")[0])]
    names = [name.split(".")[2] for name in folders]
    present = [import_module(name).FEATURE for name in folders]
    assert [feature.name for feature in present] == names
    assert [feature for feature in present if set(feature.needs) <= set(names)] == [*installed()]
    before = [feature.name for feature in installed()]
    assert without("dead_letters") == [name for name in before if name != "dead_letters"]
    assert {"board", "labels"}.isdisjoint(without("labels")), "nor one without those that it needs"
    assert all(issubclass(import_attribute(feature.metrics), MetricTable) for feature in installed() if feature.metrics)
    assert all(issubclass(import_attribute(feature.watch), Watch) for feature in installed() if feature.watch)
    names = [getattr(feature, hook) for feature in installed() for hook in ("warnings", "checks", "eraser", "estimate")]
    assert all(callable(import_attribute(name)) for name in names if name)
    names = [name for space in spaces_of_keys() for _, built in built_names(space) for name in built]
    assert sorted(set(names)) == sorted(names), "no two packages declare one key"
    # Every script is read, and names of files are unique.
    paths = list(Path(worker.__file__).parent.rglob("scripts/*.lua"))
    assert len({path.name for path in paths}) == len(paths)
    texts = [path.read_text(encoding="utf-8") for path in paths]
    names = [name for text in texts for name in re.findall("^-- @script (.+)$", text, re.MULTILINE)]
    assert sorted(names) == sorted(script_sources())


def test_guard_knows_each_command_that_a_script_declares_and_names_one_that_is_missing(keyspace: Keyspace) -> None:
    """Redis would say no more than "bad argument #1 to 'unpack'"."""
    guard = (Path(worker.__file__).parent / "core/storage/scripts/guard.lua").read_text(encoding="utf-8")
    (table,) = re.findall(r"^local HARMLESS = \{(.*?)^\}", guard, re.DOTALL | re.MULTILINE)
    known = {name.strip("[']") for name in re.findall(r"(\w+|\['[A-Z ]+'\]) = \{", table)}
    declared = r"(?:'(?:hash|zset|stream|string)'|false)((?:,\s*'[A-Z ]+')+)"
    lists = re.findall(declared, "".join(script_sources().values()))
    assert {command for commands in lists for command in re.findall("'(.+?)'", commands)} <= known
    for command in ("ZCOUNT", "LPUSH"):
        script = f"{guard}\nreturn guard({{{{KEYS[1], 'zset', 'ZCARD', '{command}'}}}})"
        with pytest.raises(redis.ResponseError, match=f"add {command} to HARMLESS in guard.lua"):
            keyspace.client.eval(script, 1, keyspace.keys.leases)


def test_hooks_of_ingest_with_one_method_are_refused_and_rates_are_adjusted_in_turn() -> None:
    class Hearing(IngestHook):
        def feedback(self, entry: FeedbackEntry) -> str | None:
            raise NotImplementedError

    class Halving(IngestHook):
        def adjust(self, rules: Sequence[CompiledRule], _: Trace) -> Any:
            halved = [match._replace(rule=structs.replace(match.rule, rate=match.rule.rate / 2)) for match in rules]
            return halved, lambda: [f"first {match.rule.rate}" for match in rules]

    with pytest.raises(ValueError, match="two features have an ingest hook with feedback"):
        find_single((Hearing(), IngestHook(), Hearing()), "feedback")
    matching = Sampler(rules_of(Settings()), (Halving(), IngestHook(), Halving()))._matching(make_trace(1))
    assert [match.rule.rate for match in matching.rules] == [0.25]
    assert [choose() for choose in matching.choosers] == [["first 1.0"], ["first 0.5"]]


def test_no_hooks_of_traces_are_built_by_default_and_only_overridden_methods_called(keyspace: Keyspace) -> None:
    settings = settings_of(keyspace)
    context = TraceHookContext(settings, None, Ledger(keyspace.store, settings), rules_of(settings))
    for hook in ("assess", "wrap_model", "after_verdict"):
        assert build_hooks((getattr(feature, hook) for feature in installed()), context) == (), hook
    hooks = build_hooks((feature.ingest for feature in installed()), context)
    assert len(find_overrides(hooks, "feedback")) == 0

    class Gathering(IngestHook):
        def close(self) -> None:
            """Do nothing."""

    gathering = Gathering()
    assert find_overrides((gathering, IngestHook()), "close") == (gathering.close,)
    assert find_overrides((gathering, IngestHook()), "before_read") == ()
    assert find_overrides((VerdictHook(),), "refresh") == (), "it would be awaited for every batch"
    assert build_hooks((Feature(name="none").ingest, lambda _: None, lambda _: gathering), None) == (gathering,)
