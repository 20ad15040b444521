"""How the worker itself imports a judge in code, to know what it needs and gives: without being surprised by it."""

import logging
import os
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Final

from judges.code.environment import as_judges_find_it
from judges.code.loading import Loaded, is_imported, load

__all__ = ["load_at_start"]

log = logging.getLogger("judges.code")

_LONG_S: Final = 5.0


def load_at_start(target: str, environment: Collection[str] = ()) -> Loaded:
    """Import a judge; what it prints goes to standard error, and it finds the variables that its processes will find.

    Raises:
        CodeError: There is none; the message says what to mend.
    """
    if is_imported(target):
        # Later, as threads may run: what follows is felt by all of them.
        return load(target)
    with announced(target), _printing_to_standard_error(), as_judges_find_it(environment):
        return load(target)


@contextmanager
def announced(target: str, after_s: float = _LONG_S) -> Iterator[None]:
    """Say what is being imported once it takes long: one that hangs would look like a start that hangs."""
    note = threading.Timer(after_s, log.warning, ("importing %s takes long: it runs until this ends", target))
    note.daemon = True
    note.start()
    try:
        yield
    finally:
        note.cancel()
        note.join()


@contextmanager
def _printing_to_standard_error() -> Iterator[None]:
    """Keep standard output for what the command prints, also from libraries and programs that write to the file."""
    kept = None
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)
