"""The table of an evaluation's states names scripts and keys that exist."""

from docs.spine import STATES
from worker.core.storage.client import script_sources
from worker.core.storage.keys import Keys


def test_scripts_and_keys_of_every_state_exist() -> None:
    for state in STATES:
        assert set(state.scripts) <= script_sources().keys(), state.name
        assert [key for key in state.keys if key not in vars(Keys)] == [], state.name
    assert len({state.name for state in STATES}) == len(STATES)
