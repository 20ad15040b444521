"""What is installed, and that nothing of it is on the way of a trace unless the configuration asks for it."""

from importlib.util import find_spec

import pytest
from support.stage_parts import Ground, rules_of, settings_of

from worker.core import features
from worker.core.features import Feature, Follower, Parts, Selector, built, installed, overridden
from worker.core.queue.ledger import Ledger
from worker.installed import MODULES


def test_every_row_is_the_module_of_a_feature() -> None:
    found = installed()
    assert len(found) == len(MODULES)
    assert [name.split(".")[2] for name in MODULES] == [feature.name for feature in found]


def test_a_row_without_its_folder_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [feature.name for feature in installed()]
    with monkeypatch.context() as patch:
        patch.setattr(features, "find_spec", lambda name: None if name.endswith("cascades") else find_spec(name))
        found = [feature.name for feature in installed.__wrapped__()]
    assert found == [name for name in before if name != "cascades"]


def test_nothing_is_on_the_way_of_a_trace_by_default(ground: Ground) -> None:
    settings = settings_of(ground)
    parts = Parts(settings, None, Ledger(ground.store, settings), rules_of(settings))
    for hook in ("assess", "wrap_model", "after_verdict"):
        assert built((getattr(feature, hook) for feature in installed()), parts) == (), hook
    selectors = built((feature.select for feature in installed()), parts)
    assert len(overridden(selectors, "feedback")) == 0


def test_only_overridden_methods_are_called() -> None:
    class Gathering(Selector):
        def close(self) -> None:
            """Do nothing."""

    one = Gathering()
    assert overridden((one, Selector()), "close") == (one.close,)
    assert overridden((one, Selector()), "before_read") == ()
    assert overridden((Follower(),), "refresh") == (), "it would be awaited for every batch"
    assert built((Feature(name="none").select, lambda _: None, lambda _: one), None) == (one,)
