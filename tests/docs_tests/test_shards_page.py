"""The page on several Redis servers: each key has its place, and the hash is ours."""

import datetime as dt
import re
from fnmatch import fnmatchcase
from pathlib import Path

from tracejudge.sharding import shard_of
from worker.core.features import installed
from worker.core.storage.keys import Key, Keys

PAGE = Path(__file__).parents[2].joinpath("docs/shards.md").read_text(encoding="utf-8")
ARGUMENTS = {"day": dt.date(2026, 1, 2), "hour": 1, "period": 1, "part": 1}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading."""
    table = PAGE.split(f"## {heading}\n", 1)[1].split("\n| --- |", 1)[1].partition("\n")[2].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def names_of_keys() -> set[str]:
    """List all keys of the product, those with variable parts with an example."""
    found = set[str]()
    for space in (Keys, *(feature.keys for feature in installed() if feature.keys)):
        keys = space("p")
        for name, member in vars(space).items():
            if isinstance(member, Key):
                found.add(getattr(keys, name))
            elif callable(member) and not name.startswith("_"):
                taken = member.__code__.co_varnames[1 : member.__code__.co_argcount]
                made = member(keys, *(ARGUMENTS.get(each, "x") for each in taken))
                found.update([made] if isinstance(made, str) else made)
    return {name.removeprefix("p:").rstrip(":") for name in found}


def test_each_key_has_its_place_and_no_other_is_named() -> None:
    patterns = [found.replace("…", "*") for key, _ in rows("Where keys are") for found in re.findall(r"`([^`]+)`", key)]
    # Of a prefix the page shows a key.
    missing = {
        name
        for name in names_of_keys()
        if not any(fnmatchcase(each, one) for each in (name, f"{name}:x") for one in patterns)
    }
    assert missing == set()
    unknown = {
        one
        for one in patterns
        if not any(fnmatchcase(each, one) for name in names_of_keys() for each in (name, f"{name}:x"))
    }
    assert unknown == set()


def test_the_examples_of_the_hash_are_right() -> None:
    counts = (2, 3, 4, 5, 8, 16)
    for name, *shards in rows("Which shard holds a trace"):
        assert [int(shard) for shard in shards] == [shard_of(name.strip("`"), None, count) for count in counts]
