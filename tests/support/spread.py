"""Spreads test files over the processes of xdist so that waiting and computing go side by side.

By itself xdist begins with the files of most tests, which compute, and at the end all processes wait for workers,
Prometheus and outages while nobody computes.
"""

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

__all__ = ["Spread"]

_WAITING = ("tests/deploy/", "tests/faults/", "tests/pipeline/")
"""Folders whose tests start programs and wait for them."""


class Spread(LoadFileScheduling):
    """Gives every other process what waits, as long as there is some, and the rest to the others."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        takes_waiting = int(node.gateway.id.removeprefix("gw")) % 2 == 0
        for scope in self.workqueue:
            if scope.startswith(_WAITING) == takes_waiting:
                self.workqueue.move_to_end(scope, last=False)
                break
        super()._assign_work_unit(node)
