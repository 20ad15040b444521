"""What a user may write for `--since` and `--until`, and what is refused there."""

import re
from typing import Any

import click
import pytest
from support.cases import each_case
from support.replay_parts import NOTHING, SAFETY, Replays
from support.stage_parts import Keyspace, make_trace

from judges.core.model import ModelSettings
from worker.base.commands.feature import ProgressKeys
from worker.base.commands.options import parse_time
from worker.base.replay.replay import format_time, id_at, milliseconds

NOW_S = 1_800_000_000.5

MOMENTS = {
    "seconds": ("90s", NOW_S - 90),
    "with a unit": ("1.5s", NOW_S - 1.5),
    "minutes": (" 15m ", NOW_S - 900),
    "hours": ("24h", NOW_S - 86_400),
    "days": ("7D", NOW_S - 7 * 86_400),
    "UTC": ("2026-05-01T12:00:00Z", 1_777_636_800.0),
    "another zone": ("2026-05-01T14:00:00+02:00", 1_777_636_800.0),
    "no zone": ("2026-05-01 12:00", 1_777_636_800.0),
    "a day": ("2026-05-01", 1_777_593_600.0),
}


@each_case(("text", "expected"), MOMENTS.values(), ids=MOMENTS.keys())
def test_a_moment_is_so_long_ago_or_a_time(text: str, expected: float) -> None:
    assert parse_time(text, NOW_S) == expected


@each_case("text", ["", "soon", "-5m", "5 weeks", "1e9", "2026-13-01", "9" * 13 + "h", "1.h"])
def test_an_invalid_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write 90s, 15m or 24h, or a time as 2026-05-01T12:00:00Z"):
        parse_time(text, NOW_S)
    with pytest.raises(ValueError, match="write 24s, 24m or 24h"):
        parse_time("24", NOW_S)


def test_the_time_of_an_entry_can_be_parsed_again() -> None:
    assert format_time("1777636800999-5") == "2026-05-01T12:00:00Z"
    assert id_at(parse_time(format_time("1777636800000-0"), NOW_S)) == "1777636800000"
    assert (milliseconds("17-3"), milliseconds("17"), id_at(-5)) == (17, 17, "0")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no time": ({"since": "soon"}, "--since: write 90s, 15m"),
    "no end": ({"until": "later"}, "--until: write 90s, 15m"),
    "the future": ({"since": "2100-01-01"}, "--since: must be before now"),
    "an end before the beginning": ({"since": "5m", "until": "10m"}, "--since: must be before --until"),
    "further than the ledger": ({"since": "25.1h"}, "remembers verdicts for 25h"),
    "a rate beside a rule": ({"rate": 0.5}, "--rate is for judges that no rule names, and rule 'all' names safety"),
    "a model beside a rule": ({"model": "default"}, "--model is for judges that no rule names, and rule 'all'"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_invalid_options_of_a_replay_are_refused(keyspace: Keyspace, options: dict[str, Any], message: str) -> None:
    replays = Replays(keyspace, rules=(SAFETY,), retention=3600.0)
    with pytest.raises(click.UsageError, match=re.escape(message)):
        replays.begin("safety", **options)
    assert keyspace.client.keys(ProgressKeys(keyspace.keys.prefix).replay("*")) == []


def test_a_model_that_is_not_there_is_refused_with_the_nearest(keyspace: Keyspace) -> None:
    replays = Replays(keyspace, rules=(NOTHING,))
    with pytest.raises(click.UsageError, match=re.escape("there is no [models.defualt]; did you mean default?")):
        replays.begin("safety", model="defualt")


def test_a_model_that_cannot_be_asked_is_refused(keyspace: Keyspace) -> None:
    cheap = ModelSettings(provider="decisions", base_url="http://localhost:9/v1", model="c")
    replays = Replays(keyspace, rules=(NOTHING,), models={"default": ModelSettings(provider="lexical"), "cheap": cheap})
    refused = "user_frustration cannot be asked of a decision model: it has no form of typed questions; name another"
    with pytest.raises(click.UsageError, match=re.escape(refused)):
        replays.begin("user_frustration", model="cheap")


def test_as_far_as_the_ledger_remembers_is_not_too_far(keyspace: Keyspace) -> None:
    assert Replays(keyspace, retention=3600.0).make(since="25h") == {}


def test_only_traces_published_in_the_period_are_replayed(keyspace: Keyspace) -> None:
    seconds = keyspace.client.time()[0]
    for number, ago_s in enumerate((7200, 3000, 2000, 10)):
        payload = {"trace_id": make_trace(number).trace_id, "service": "shop", "output": "It is."}
        fields = {"v": "1", "t": str(payload).replace("'", '"')}
        keyspace.client.xadd(keyspace.keys.traces, fields, id=f"{(seconds - ago_s) * 1000}-0")
    replays = Replays(keyspace)
    looked_at = {(since, until): replays.make(since=since, until=until).get("traces", 0) for since, until in PERIODS}
    assert looked_at == PERIODS


PERIODS = {("1h", None): 3, ("1h", "20m"): 2, ("3h", "1h"): 1, ("5s", None): 0, ("20m", "10m"): 0, ("3h", None): 4}
