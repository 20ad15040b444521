"""Read-only answers for agents over stdio, and at `/mcp` of the board behind its tokens."""

from typing import Final

from worker.core.features import Command, Feature

_COMMANDS: Final = {"mcp": Command("worker.features.mcp.server", "Answer agents about quality, read-only (MCP)")}
FEATURE: Final = Feature(name="mcp", needs=("failures", "report"), commands=_COMMANDS)
