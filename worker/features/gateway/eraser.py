"""Erases spans that wait to be joined."""

from operator import methodcaller

from worker.base.forget.forget import Eraser
from worker.features.gateway.feature import GatewayKeys


class SpanEraser(Eraser):
    """Erases gathered spans. Before they are joined they name no person, so only their trace is known."""

    def erase(self) -> None:
        """Erase the spans of the target's traces, which count as ``gathered``."""
        store = self.run.store
        keys = GatewayKeys(store.keys.prefix)
        for trace_id in self.run.target.trace_ids:
            number, size = store.call(methodcaller("hmget", keys.gathered(trace_id), "count", "bytes"))
            self.run.result.gathered += number is not None
            if number is not None and not self.run.dry_run:
                store.run("gather_done", (keys.gather, keys.gather_due), (trace_id, number, size))
