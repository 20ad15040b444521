"""What the tests of `tracejudge doctor` share: a Redis of their own, workers that say they are there, parts by name."""

from typing import Any, NamedTuple

from support.cli_parts import SECRET, Ended, Run
from support.redis_kinds import TunedRedis
from worker.base.embedded import ServerBinary, find_servers
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.core.telemetry.health import Heartbeat

ROLES = ("ingest", "judge", "export", "monitor")
KEPT = ("--appendonly", "yes")
NOWHERE = "redis://127.0.0.1:1/0"
"""No Redis: these parts are looked at all the same."""


class Part(NamedTuple):
    """What the doctor says of one part."""

    result: str
    what: str
    mend: str


def tuned(*options: str, binary: ServerBinary | None = None) -> TunedRedis:
    """Make a Redis of the test's own, by default without persistence."""
    return TunedRedis(binary or find_servers()[0], *options)


def at(url: str) -> Store:
    return Store(url, Keys())


def login(url: str, user: str, password: str = SECRET) -> str:
    """Put a user into the address of a Redis."""
    return url.replace("redis://", f"redis://{user}:{password}@")


def be_present(url: str, **roles: bool) -> None:
    """Report a worker; all its roles make progress unless stated otherwise."""
    store = at(url)
    Heartbeat(store).beat(roles or dict.fromkeys(ROLES, True))
    store.close()


def examined(run: Run, *arguments: Any, url: str | None = None) -> tuple[Ended, dict[str, Part]]:
    """Run the doctor, check what holds of every answer, and give its parts by name."""
    where = ("--redis-url", url) if url else ()
    ended = run("doctor", "--json", *where, *arguments)
    by_name = {part["name"]: Part(part["result"], part["what"], part["mend"]) for part in ended.document["parts"]}
    assert ended.err == ""
    assert len(by_name) == len(ended.document["parts"]), "each part once"
    is_broken = any(part.result == "broken" for part in by_name.values())
    assert (ended.code, ended.document["ok"]) == (int(is_broken), not is_broken)
    assert all(bool(part.mend) == (part.result != "ok") for part in by_name.values()), by_name
    return ended, by_name


def part(run: Run, name: str = "model default", *arguments: str) -> Part:
    """Run the doctor without Redis, and give one part; the key is never shown."""
    ended, parts = examined(run, *arguments, url=NOWHERE)
    assert SECRET not in ended.out
    return parts[name]
