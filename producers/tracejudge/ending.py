"""The ends of a process that `atexit` does not see."""

import sys
from collections.abc import Callable


class _Ends:
    """What is to run in this process; one callback, the latest: a client that `init` replaces is shut down by it."""

    callback: Callable[[], None] | None = None


def at_end_of_child(callback: Callable[[], None]) -> None:
    """Have a callback run when this process ends, if it is a child of a kind that skips `atexit`.

    Called in the child itself and late, when its first entry is there: multiprocessing forgets what was registered
    before the fork. A child that is killed, or leaves with `os._exit`, runs nothing.
    """
    _Ends.callback = callback
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize  # noqa: PLC0415 - in memory already, in such a child

        Finalize(None, _end, exitpriority=0)
    # Celery's prefork pool leaves with os._exit, and this signal, sent in the child only, is all it says before.
    celery = sys.modules.get("celery.signals")
    if celery is not None:
        # Under one name it keeps the first receiver: so that one must not be bound to any client.
        celery.worker_process_shutdown.connect(_end, weak=False, dispatch_uid="tracejudge")


def _end(**_: object) -> None:
    if _Ends.callback is not None:
        _Ends.callback()
