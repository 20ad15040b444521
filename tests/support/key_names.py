"""The names of all keys in Redis, as the classes of keys build them."""

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

from worker.core.features import installed
from worker.core.storage.keys import Key, Keys, KeySpace


def spaces_of_keys() -> tuple[type[KeySpace], ...]:
    """Return the classes of keys: that of the core, and those of installed features."""
    return (Keys, *(feature.keys for feature in installed() if feature.keys))


def built_names(space: type[KeySpace]) -> Iterator[tuple[Key | Callable[..., Any], tuple[str, ...]]]:
    """Yield each declaration of keys with their names behind the prefix; variable parts are an example."""
    keys = space("p")
    for name, member in vars(space).items():
        if isinstance(member, Key):
            yield member, (member.name,)
        elif callable(member) and not name.startswith("_"):
            parts = member.__code__.co_varnames[1 : member.__code__.co_argcount]
            dates = {part for part in parts if member.__annotations__[part] is dt.date}
            built = member(keys, *(dt.date(2026, 1, 2) if part in dates else f"<{part}>" for part in parts))
            names = (built,) if isinstance(built, str) else built
            # A method without arguments returns a key that another one builds.
            yield member, tuple(made.removeprefix("p:") for made in names) if parts else ()
