"""The errors of the SDK, by who must act.

TraceJudgeError
├── ConfigurationError (also a ValueError)   the caller: `init` was told something wrong; the text says the mend
├── DeliveryError                            nobody: Redis did not confirm a batch, which is sent again
└── RedactionError                           the caller: its `redact` function failed; the trace does not travel
"""


class TraceJudgeError(Exception):
    """Root of everything the SDK raises itself."""


class ConfigurationError(TraceJudgeError, ValueError):
    """An argument of `init`, or the variable behind it, is wrong."""


class DeliveryError(TraceJudgeError):
    """A batch was not confirmed; whether it stands in the stream is unknown. Never reaches the host."""


class RedactionError(TraceJudgeError):
    """A redaction function raised or gave no text. Never reaches the host: the trace is a counted drop."""
