"""What can go wrong with a judge in code: the fault of its author, or ours to try again.

What it does wrong with a trace is a ``JudgeFailedError``, which is a verdict.

    Exception
    ├── ValueError
    │   └── CodeError         no judge can be made of it: the start stops
    └── PassingError          nothing is wrong with judge and trace: the evaluation is tried again
        ├── ChangedError      its module is another than when the worker began
        ├── ClosedError       the worker ends
        └── NotStartedError   no process of the judge came up, though the worker itself could import it

All messages are ours, and none holds a text of a trace.
"""

__all__ = ["ChangedError", "ClosedError", "CodeError", "NotStartedError", "PassingError"]


class CodeError(ValueError):
    """No judge can be made of this code; the message is what to mend."""


class PassingError(Exception):
    """The evaluation had no chance; another worker, or this one later, may make it."""


class ChangedError(PassingError):
    """The code is no longer what the version says: only a worker that is started anew may run it."""


class ClosedError(PassingError):
    """The judge was closed while it had this trace."""


class NotStartedError(PassingError):
    """Its process could not be begun, or did not import it: a disk is full, a mount gone, the machine too busy."""
