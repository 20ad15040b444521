"""What the judges' tests run under: no tool overruns because a machine stands still for seconds."""

from collections.abc import Iterator

import pytest
from support.processes import PATIENCE_S

from judges.agent import patterns as budget
from judges.agent import tool_use


@pytest.fixture(autouse=True)
def patience_with_tools() -> Iterator[pytest.MonkeyPatch]:
    """Lengthen what a tool and a search may take on the wall; ``undo`` brings the product's own limits back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tool_use, "_MAX_TOOL_S", PATIENCE_S)
        patch.setattr(budget, "_WALL_S", PATIENCE_S)
        yield patch
