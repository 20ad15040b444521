"""The table of an evaluation's states names scripts and keys that exist, and all scripts that make batches ready."""

import re

from docs.spine import STATES
from worker.core.storage.client import script_sources
from worker.core.storage.keys import Keys


def test_scripts_and_keys_of_every_state_exist() -> None:
    for state in STATES:
        assert set(state.scripts) <= script_sources().keys(), state.name
        assert [key for key in state.keys if key not in vars(Keys)] == [], state.name
    assert len({state.name for state in STATES}) == len(STATES)


def test_the_state_ready_names_every_script_that_makes_batches_ready() -> None:
    (ready,) = (state for state in STATES if state.name == "ready")
    writes = re.compile(r"(?<!function )link_batch\(|'ZADD', ready")
    scripts = {name for name, source in script_sources().items() if writes.search(source)}
    # `put_back` names the set by the number of its key only.
    assert set(ready.scripts) == {*scripts, "put_back"}
