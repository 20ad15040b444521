"""Reports of shares and cost, and estimates of both."""

from typing import Final

from worker.core.features import Command, Feature

_COMMANDS: Final = {
    "plan": Command("worker.features.report.plan", "Estimate the cost of a day of rules"),
    "report": Command("worker.features.report.command", "Report pass shares with intervals, coverage and cost"),
}
FEATURE: Final = Feature(name="report", commands=_COMMANDS, estimate="worker.features.report.plan.expected_work")
