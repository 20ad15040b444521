"""Which parts of base and which features are installed, in the order in which their hooks run.

A row whose folder was removed is passed over.
"""

from typing import Final

MODULES: Final = (
    "worker.base.commands.feature",
    "worker.base.input.feature",
    "worker.base.monitor.feature",
    "worker.base.dead_letters.feature",
    "worker.base.lookup.feature",
    "worker.base.delivery.feature",
    "worker.features.python.feature",
    "worker.features.receivers.feature",
    "worker.features.late_feedback.feature",
    "worker.features.sessions.feature",
    "worker.features.panels.feature",
    "worker.features.budgets.feature",
    "worker.features.labels.feature",
    "worker.features.canary.feature",
    "worker.features.repeats.feature",
    "worker.features.cascades.feature",
    "worker.features.safety.feature",
    "worker.features.gateway.feature",
    "worker.features.board.feature",
    "worker.features.report.feature",
    "worker.features.failures.feature",
    "worker.features.mcp.feature",
    "worker.features.lab.feature",
    "worker.features.demo.feature",
    "worker.features.up.feature",
)
