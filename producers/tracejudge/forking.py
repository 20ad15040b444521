"""What has to begin anew in a forked child, and when a fork has to wait."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, ClassVar, Protocol
from weakref import WeakSet

from tracejudge.ids import reseed
from tracejudge.native import native_lock
from tracejudge.swallowing import swallow

_LONGEST_IMPORT_S = 10.0
"""An import gets on, if slowly where the machine is busy; a child forked in the midst of it could send nothing."""
_LONGEST_CONNECT_S = 0.2
"""A healthy network needs less; a hanging one must not hold up the host's forks."""


class Renewable(Protocol):
    """Has locks, threads or a buffer that a child must not share with its parent."""

    def renew(self) -> None:
        """Begin anew."""


class _Forks:
    """What the hooks of this process know."""

    renewable: ClassVar[WeakSet[Renewable]] = WeakSet()  # weak: who is gone in the parent needs nothing in the child
    importing: Any = native_lock()
    connecting: Any = native_lock()
    held: ClassVar[list[Any]] = []
    """The locks that the thread that forks holds, while it keeps imports and connections away."""
    holder: int | None = None


def renewed_in_children(one: Renewable) -> None:
    """Have something renewed in every child, before anything else of the host runs there."""
    _Forks.renewable.add(one)


@contextmanager
def unforked_import() -> Iterator[None]:
    """Let forks wait for an import in the background thread.

    A child that is forked in the midst of one inherits the lock of a module that nobody goes on loading, and
    would hang as soon as it imports the same. Redis takes 0.1 s to load, once in a process.
    """
    lock = _Forks.importing
    with lock:
        yield


@contextmanager
def unforked_connect() -> Iterator[None]:
    """Let forks wait, though not for long, for a connection that is being made in the background thread.

    The C library holds a lock while it looks a host up. A child that is forked then would hang in its own first
    look-up, be it the host's.
    """
    lock = _Forks.connecting
    with lock:
        yield


def _before() -> None:
    importing, connecting = _Forks.importing, _Forks.connecting
    if importing.acquire(timeout=_LONGEST_IMPORT_S):
        _Forks.holder, _Forks.held = get_ident(), [importing]
        if connecting.acquire(timeout=_LONGEST_CONNECT_S):
            _Forks.held.append(connecting)


def _after_in_parent() -> None:
    if _Forks.holder == get_ident():  # it did not lose patience
        held, _Forks.holder, _Forks.held = _Forks.held, None, []
        for lock in reversed(held):
            lock.release()


def _after_in_child() -> None:
    _Forks.holder, _Forks.held = None, []
    _Forks.importing, _Forks.connecting = native_lock(), native_lock()
    reseed()  # first, as what is renewed draws ids
    for one in list(_Forks.renewable):
        try:
            one.renew()
        except Exception as error:  # noqa: BLE001 - the child is the host's, and goes on
            swallow(error)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork either
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
