"""Make looks side by side, each bounded in time: one that hangs holds up neither the others nor the end."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from worker.cli.doctor.finding import Finding, broken
from worker.store import StoreError

__all__ = ["Look", "examine"]

_BOUND_S: Final = 5.0


class Look(NamedTuple):
    """A part to look at, under the name of what it finds when it comes to nothing, and how long it may take."""

    name: str
    make: Callable[[], Sequence[Finding]]
    bound_s: float = _BOUND_S


def examine(looks: Sequence[Look], clock: Callable[[], float] = time.monotonic) -> list[Finding]:
    """Make all looks at once; return what they find, in their order."""
    found: dict[int, Sequence[Finding]] = {}

    def run(place: int, look: Look) -> None:
        found[place] = _made(look)

    # Threads of our own: those of a pool are waited for at the end of the process, however long they hang.
    threads = [threading.Thread(target=run, args=each, daemon=True) for each in enumerate(looks)]
    began = clock()
    for thread in threads:
        thread.start()
    for thread, look in zip(threads, looks, strict=True):
        thread.join(max(0.0, began + look.bound_s - clock()))
    return [each for place, look in enumerate(looks) for each in found.get(place, (_overran(look),))]


def _made(look: Look) -> Sequence[Finding]:
    try:
        return look.make()
    except StoreError as error:
        return [broken(look.name, f"cannot be looked at: {error}", "mend Redis, then look again")]
    except RedisError as error:
        return [_unanswered(look, error)]
    except Exception as error:  # noqa: BLE001 - one look that fails must not hide the others
        what = f"cannot be looked at ({type(error).__name__})"
        return [broken(look.name, what, "this is a mistake of ours: please report it")]


def _unanswered(look: Look, error: RedisError) -> Finding:
    """Name the failure without the driver's text, which may hold an address or a key."""
    if isinstance(error, NoPermissionError):
        mend = "allow what the permissions' part names (ACL SETUSER), then look again"
        return broken(look.name, "cannot be looked at: Redis refuses the user a command", mend)
    what = "refuses a command" if isinstance(error, ResponseError) else "does not answer"
    return broken(
        look.name, f"cannot be looked at: Redis {what} ({type(error).__name__})", "mend Redis, then look again"
    )


def _overran(look: Look) -> Finding:
    mend = "see whether a firewall drops the connection, and whether the other side is overloaded"
    return broken(look.name, f"no answer within {look.bound_s:g} s", mend)
