"""Spreads test files over the processes of xdist so that waiting and computing tests run at the same time.

By default xdist begins with the files that have most tests, which compute. At the end all processes then wait for
workers, Prometheus and outages, and none computes.
"""

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

__all__ = ["Spread"]

_WAITING = ("tests/deploy/", "tests/faults/", "tests/pipeline/")
"""Folders whose tests start programs and wait for them."""


class Spread(LoadFileScheduling):
    """Assigns waiting tests to every second process while there are some, and the rest to the others."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        takes_waiting = int(node.gateway.id.removeprefix("gw")) % 2 == 0
        for scope in self.workqueue:
            if scope.startswith(_WAITING) == takes_waiting:
                self.workqueue.move_to_end(scope, last=False)
                break
        super()._assign_work_unit(node)
