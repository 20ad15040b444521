"""What a model is told when a call cannot be answered."""

__all__ = ["ToolError"]


class ToolError(ValueError):
    """A call that cannot be answered; the message is for the model and says what to send instead."""
