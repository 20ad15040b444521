"""compose.yaml as tests read it."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
_ADDRESS = re.compile(r"\b(?:https?|redis)://([\w.-]+):(\d+)")


class Mount(NamedTuple):
    """A file or folder of deploy/ in a container."""

    source: Path
    target: str
    is_read_only: bool


def read_yaml(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


@cache
def services() -> dict[str, dict[str, Any]]:
    return read_yaml("compose.yaml")["services"]


def mounts(service: dict[str, Any]) -> list[Mount]:
    parts = [volume.split(":") for volume in service.get("volumes", ()) if volume.startswith(".")]
    return [Mount(DEPLOY / source, target, "ro" in options) for source, target, *options in parts]


def ports(service: dict[str, Any]) -> dict[int, int]:
    """Return the container port of each published port; all are bound to the loopback."""
    value = [port.split(":") for port in service.get("ports", ())]
    assert all(host == "127.0.0.1" for host, *_ in value)
    return {int(outer): int(inner) for _, outer, inner in value}


def addresses(text: str) -> Iterator[tuple[str, int]]:
    """Return host and port of every URL that names both."""
    for matches in _ADDRESS.finditer(text):
        yield matches[1], int(matches[2])
