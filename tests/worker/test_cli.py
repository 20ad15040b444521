"""The command line: what each verb prints where, and the exit code by which a script knows how it went."""

import io
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from redis import Redis
from support.processes import free_port

import judges
import tracejudge
from judges.catalog import catalogue
from judges.verdict import Score, Verdict
from tracejudge import api
from worker import cli
from worker.cli import main, publish, tail
from worker.embedded import EmbeddedRedisError
from worker.keys import Keys
from worker.store import Store, StoreError

SAMPLES = Path(judges.__file__).parent / "samples"
SECRET = "s3cret"  # noqa: S105 - nobody's
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"

CONTRACT_VERBS = {
    *("demo", "worker", "publish", "evaluate", "judges", "tail", "account", "dead", "replay", "forget", "doctor")
}
LATER_VERBS = {"evaluate", "dead", "replay", "forget", "doctor"}

ACCOUNT_KEYS = [
    *("published", "dropped", "cut_off", "invalid", "duplicate", "no_rule", "not_sampled", "shed", "sampled", "unread"),
    *("chosen", "scored", "abstained", "unscored", "dead", "waiting", "removed", "lost", "reasons"),
]


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Standard output as JSON lines."""
        *lines, end = self.out.split("\n")
        assert end == ""
        return [json.loads(line) for line in lines]

    @property
    def document(self) -> Any:
        """Standard output as one JSON document on one line."""
        assert self.out.count("\n") == 1
        assert self.out.endswith("\n")
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The one line on standard error, where there is nothing else."""
        assert self.out == ""
        assert self.err.count("\n") == 1
        assert self.err.endswith("\n")
        assert SECRET not in self.err
        return self.err[:-1]


Run = Callable[..., Ended]


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], _plain_environment: None
) -> Iterator[Run]:
    """Run a command in an empty folder, in this process; the SDK is left as if it had never been started."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return Ended(ended.value.code, *capsys.readouterr())

    yield run
    tracejudge.shutdown()
    api._Current.client = None


@pytest.fixture
def served(run: Run, monkeypatch: pytest.MonkeyPatch, redis_url: str, prefix: str) -> Run:
    """Run a command with Redis and a prefix of this test alone."""
    monkeypatch.setenv("TRACEJUDGE_REDIS_URL", redis_url)
    monkeypatch.setenv("TRACEJUDGE_PREFIX", prefix)
    return run


# --- help ---

HELP: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("demo",): ("--seconds N", "--json"),
    ("worker",): ("--roles LIST", "ingest, judge, export", "--config FILE", "--redis-url URL", "--metrics-port"),
    ("publish",): ("FILE", "standard input", "--config FILE", "--redis-url URL"),
    ("judges",): ("--json", "test"),
    ("judges", "test"): ("NAME TRACES", "--label TAG", "--by TAG", "--min", "--model", "--config FILE", "--json"),
    ("tail",): ("--failed", "--json", "--last N", "--count N", "--config FILE", "--redis-url URL"),
    ("account",): ("--json", "--config FILE", "--redis-url URL"),
}


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("verb", HELP, ids=" ".join)
def test_each_verb_says_what_it_takes(run: Run, verb: tuple[str, ...]) -> None:
    ended = run(*verb, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"Usage: tracejudge {' '.join(verb)} ")
    missing = [wanted for wanted in HELP[verb] if wanted not in words(ended.out)]
    assert not missing
    assert run(*verb, "-h") == ended


def test_the_verbs_are_those_of_the_contract(run: Run) -> None:
    assert set(cli.verbs()) == CONTRACT_VERBS - LATER_VERBS == {verb for verb, *_ in HELP}
    listed = run("--help").out.split("Commands:\n")[1]
    assert [line.split()[0] for line in listed.splitlines()] == sorted(cli.verbs())
    assert all(len(line.split()) > 1 for line in listed.splitlines())


def test_the_version_is_the_distribution_s(run: Run) -> None:
    assert re.fullmatch(r"tracejudge, version \d+\.\d+\.\d+\n", run("--version").out)


WRONG_USAGE = {
    "no verb": ([], "Usage: tracejudge [OPTIONS] COMMAND"),
    "unknown verb": (["nope"], "No such command 'nope'."),
    "unknown option": (["account", "--nope"], "No such option"),
    "no file": (["publish"], "Missing argument 'FILE'."),
    "absent file": (["publish", "absent.jsonl"], "No such file or directory"),
    "no number": (["tail", "--last", "few"], "not a valid integer"),
    "count of none": (["tail", "--count", "0"], "not in the range x>=1"),
    "short demo": (["demo", "--seconds", "0"], "not in the range"),
    "unknown verb of judges": (["judges", "nope"], "No such command 'nope'."),
    "test without a file": (["judges", "test", "safety"], "Missing argument 'TRACES'."),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG_USAGE.values(), ids=WRONG_USAGE.keys())
def test_wrong_usage_is_exit_code_two(run: Run, arguments: Sequence[str], said: str) -> None:
    ended = run(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert said in words(ended.err)
    assert "Traceback" not in ended.err


# --- configuration and Redis that do not serve ---

NEEDS_REDIS = {"account": ["account"], "account as JSON": ["account", "--json"], "tail": ["tail"]}
CONFIGURED = {
    **NEEDS_REDIS,
    "publish": ["publish", "-"],
    "worker": ["worker"],
    "judges test": ["judges", "test", "safety", SAMPLES / "support-bot.jsonl", "--label", "safe"],
}


@pytest.mark.parametrize("arguments", CONFIGURED.values(), ids=CONFIGURED.keys())
def test_a_wrong_configuration_is_exit_code_two_and_one_line(run: Run, arguments: Sequence[object]) -> None:
    Path("tracejudge.toml").write_text("batch_size = 0", encoding="utf-8")
    ended = run(*arguments)
    assert ended.code == 2
    assert ended.complaint == "tracejudge: tracejudge.toml: batch_size: must be a whole number of at least 1"


@pytest.mark.parametrize("arguments", CONFIGURED.values(), ids=CONFIGURED.keys())
def test_a_configuration_that_is_named_must_be_there(run: Run, arguments: Sequence[object]) -> None:
    ended = run(*arguments, "--config", "absent.toml")
    assert ended.code == 2
    assert ended.complaint == (
        "tracejudge: absent.toml: cannot be read (No such file or directory); check --config or TRACEJUDGE_CONFIG"
    )


def test_an_argument_is_named_as_it_is_written(run: Run) -> None:
    for arguments, said in (
        (["worker", "--roles", "ingest, jduge"], "--roles: roles[1]: must be one of export, ingest, judge"),
        (["worker", "--metrics-port", "65536"], "--metrics-port: metrics_port: must be a whole number from 0 to 65535"),
    ):
        ended = run(*arguments)
        assert (ended.code, ended.complaint) == (2, f"tracejudge: {said}")


def test_an_address_that_is_none_shows_no_password(run: Run) -> None:
    for url in (f"redis://:{SECRET}/x@host:6379/0", f"http://:{SECRET}@host", f"redis://[{SECRET}"):
        ended = run("account", "--redis-url", url)
        assert ended.code == 2
        assert ended.complaint.startswith("tracejudge: --redis-url: redis_url ")


@pytest.mark.parametrize(
    "arguments",
    [*NEEDS_REDIS.values(), ["publish", SAMPLES / "support-bot.jsonl"]],
    ids=[*NEEDS_REDIS.keys(), "publish"],
)
def test_an_absent_redis_is_exit_code_one_and_one_line_that_says_where_it_was_sought(
    run: Run, arguments: Sequence[object]
) -> None:
    port = free_port()
    ended = run(*arguments, "--redis-url", f"redis://user:{SECRET}@127.0.0.1:{port}/3")
    assert ended.code == 1
    assert ended.complaint == (
        f"tracejudge: Redis does not answer (ConnectionError): redis://127.0.0.1:{port}/3;"
        " set redis_url, TRACEJUDGE_REDIS_URL or --redis-url"
    )


def test_a_redis_that_refuses_the_password_is_not_told_it_on_screen(run: Run, redis_url: str) -> None:
    ended = run("account", "--redis-url", redis_url.replace("redis://", f"redis://:{SECRET}@"))
    assert ended.code == 1
    assert ended.complaint.endswith("; set redis_url, TRACEJUDGE_REDIS_URL or --redis-url")


ENDS = {
    "Ctrl-C": (KeyboardInterrupt(), 130, ""),
    "Redis goes away": (StoreError("Redis does not answer (TimeoutError)"), 1, "tracejudge: Redis does not answer"),
    "no embedded Redis": (EmbeddedRedisError("no Redis server: install one"), 1, "tracejudge: no Redis server"),
}


@pytest.mark.parametrize(("error", "code", "said"), ENDS.values(), ids=ENDS.keys())
def test_what_ends_a_verb_early_has_its_exit_code(
    served: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    def ending(*_: object) -> None:
        raise error

    monkeypatch.setattr(tail, "follow", ending)
    ended = served("tail")
    assert ended.code == code
    assert ended.err.startswith(said)
    assert "Traceback" not in ended.err


# --- judges ---


def test_the_catalogue_is_one_document_on_one_line(run: Run) -> None:
    ended = run("judges", "--json")
    assert (ended.code, ended.err) == (0, "")
    rows = {row.pop("name"): row for row in ended.document}
    assert list(rows) == list(catalogue())
    for name, row in rows.items():
        judge = catalogue()[name]
        assert row.pop("asks") == judge.asks
        assert set(row) == {"metrics", "needs", "scale", "pass", "version"}
        assert row["metrics"] == list(judge.metric_names) == list(row["scale"]) == list(row["pass"])
        assert re.fullmatch(r"[0-9a-f]{32}", row["version"])
    assert rows["groundedness"]["needs"] == ["input", "output", "context"]
    assert rows["correctness"]["needs"] == ["input", "output", "expected_response or expected_facts"]
    assert rows["safety"]["scale"] == {"safety": "0 or 1"}
    assert rows["safety"]["pass"] == {"safety": "yes"}


def test_the_catalogue_for_people_names_every_judge(run: Run) -> None:
    ended = run("judges")
    assert (ended.code, ended.err) == (0, "")
    for judge in catalogue().values():
        assert f"{judge.name} {judge.version[:8]}\n  {judge.asks}\n" in ended.out


def write_lines(name: str, records: Sequence[object]) -> str:
    data = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in records)
    Path(name).write_bytes(data)
    return name


def labelled(label: object, **fields: Any) -> dict[str, Any]:
    tags = {} if label is None else {"tags": {"safe": label}}
    return {"trace_id": TRACE_ID, "service": "shop", "output": "It is.", **tags, **fields}


def scripted(*answers: str, **model: Any) -> str:
    """Configure a model that answers one trace after the other: `yes`, `no`, or the name of a failure."""
    steps = [
        {"text": json.dumps({"rationale": "So.", "result": answer})}
        if answer in {"yes", "no", "unknown"}
        else {"failure": answer}
        for answer in answers
    ]
    settings = {"provider": "scripted", "model": "m", "script": write_lines("steps.jsonl", steps), **model}
    return json.dumps({"default": settings})


def test_agreement_with_labels_is_measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    price = {"input": 1000.0, "output": 0.0}
    answers = ("yes", "yes", "no", "no", "yes", "timeout", "unknown", "no")
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted(*answers, price=price))
    labels = ("yes", "pass", "yes", "no", "0", "yes", "no", "FALSE", None)
    ended = run(
        "judges", "test", "safety", write_lines("t.jsonl", [*map(labelled, labels)]), "--label", "safe", "--json"
    )
    assert ended.code == 0
    figures = ended.document
    tokens = sum(len(json.dumps({"rationale": "So.", "result": one})) for one in answers if one != "timeout")
    assert figures.pop("cost_usd") == pytest.approx(tokens * 1000 / 1e6)
    assert figures == {
        "judge": "safety",
        "version": catalogue()["safety"].version,
        "model": "m",
        "traces": 8,
        "balanced_accuracy": pytest.approx((2 / 3 + 2 / 3) / 2),
        "true_pass": 2,
        "false_pass": 1,
        "true_fail": 2,
        "false_fail": 1,
        "unscored": {"timeout": 1, "abstained": 1},
    }


@pytest.mark.parametrize(("minimum", "code"), [("0.6", 0), ("0.75", 0), ("0.76", 1), ("1.0", 1)])
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
def test_a_minimum_makes_it_a_check(
    run: Run, monkeypatch: pytest.MonkeyPatch, minimum: str, code: int, form: list[str]
) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", "yes", "no", "yes"))
    file = write_lines("t.jsonl", [*map(labelled, ("yes", "yes", "no", "no"))])
    ended = run("judges", "test", "safety", file, "--label", "safe", "--min", minimum, *form)
    assert ended.code == code
    assert (f"balanced accuracy is below {minimum}" in ended.err) is bool(code)
    if form:
        assert ended.document["balanced_accuracy"] == 0.75
    else:
        assert "balanced accuracy: 0.750 (0.5 is chance)" in ended.out


def test_a_minimum_is_not_reached_without_a_figure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("timeout"))
    file = write_lines("t.jsonl", [labelled("yes"), labelled("no")])
    ended = run("judges", "test", "safety", file, "--label", "safe", "--min", "0")
    assert ended.code == 1
    assert "no figure: a label group is empty" in ended.out
    assert "unscored: 2 timeout; cost: no price set" in ended.out


def test_another_tag_gives_shares_and_no_agreement(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MODELS", scripted("yes", "no", "yes", "bad_request"))
    file = write_lines("t.jsonl", [*map(labelled, ("en", "en", "de", "fr", None))])
    ended = run("judges", "test", "safety", file, "--by", "safe", "--json")
    assert ended.code == 0
    assert ended.document == {
        "judge": "safety",
        "version": catalogue()["safety"].version,
        "model": "m",
        "by": "safe",
        "groups": {
            "de": {"passed": 1, "scored": 1, "unscored": {}, "share": 1.0},
            "en": {"passed": 1, "scored": 2, "unscored": {}, "share": 0.5},
            "fr": {"passed": 0, "scored": 0, "unscored": {"bad_request": 1}, "share": None},
        },
    }
    table = run("judges", "test", "safety", file, "--by", "safe").out
    assert "This is no agreement" in table
    assert re.search(r"en\W+1\W+2\W+50.0%\W+none", table)


SAMPLE_TAGS = {"relevance_to_query": "relevant", "safety": "safe", "groundedness": "grounded", "correctness": "correct"}


@pytest.mark.parametrize(("judge", "tag"), SAMPLE_TAGS.items())
@pytest.mark.parametrize("service", ["code-helper", "summariser", "support-bot"])
def test_the_samples_are_measured_with_the_built_in_model(run: Run, service: str, judge: str, tag: str) -> None:
    """Every sample that bears the label is judged, and none stays unscored."""
    file = SAMPLES / f"{service}.jsonl"
    labels = [json.loads(line)["tags"].get(tag) for line in file.read_text(encoding="utf-8").split("\n") if line]
    figures = run("judges", "test", judge, file, "--label", tag, "--json").document
    assert figures["model"] == "lexical"
    assert figures["cost_usd"] is None
    assert figures["true_pass"] + figures["false_fail"] == labels.count("yes")
    assert figures["true_fail"] + figures["false_pass"] == labels.count("no")
    assert (figures["traces"], figures["unscored"]) == (labels.count("yes") + labels.count("no"), {})
    assert 0 <= figures["balanced_accuracy"] <= 1


def test_traces_without_what_a_judge_needs_are_unscored(run: Run) -> None:
    ended = run("judges", "test", "groundedness", SAMPLES / "code-helper.jsonl", "--by", "safe", "--json")
    unscored = [group["unscored"].get("missing_input", 0) for group in ended.document["groups"].values()]
    assert sum(unscored) == 19


MISUSE = {
    "unknown judge": (
        ["zzz", "t.jsonl", "--label", "safe"],
        f"there is no judge 'zzz'; known are {', '.join(catalogue())}",
    ),
    "no tag": (["safety", "t.jsonl"], "give --label TAG"),
    "both tags": (["safety", "t.jsonl", "--label", "safe", "--by", "safe"], "give --label TAG"),
    "minimum of shares": (["safety", "t.jsonl", "--by", "safe", "--min", "0.5"], "give --label TAG"),
    "minimum above one": (["safety", "t.jsonl", "--label", "safe", "--min", "2"], "not in the range"),
    "absent tag": (["safety", "t.jsonl", "--label", "zzz"], "no trace of the file has the tag 'zzz'"),
    "label that is none": (
        ["safety", "t.jsonl", "--label", "other"],
        "the tag 'other' holds other values than yes and no",
    ),
    "unknown model": (
        ["safety", "t.jsonl", "--label", "safe", "--model", "gpt"],
        "there is no [models.gpt]; known are default",
    ),
    "absent file": (["safety", "absent.jsonl", "--label", "safe"], "No such file or directory"),
}


@pytest.mark.parametrize(("arguments", "said"), MISUSE.values(), ids=MISUSE.keys())
def test_a_wrong_test_of_a_judge_is_exit_code_two(run: Run, arguments: Sequence[str], said: str) -> None:
    write_lines("t.jsonl", [labelled("yes"), {**labelled("no"), "tags": {"safe": "no", "other": "maybe"}}])
    ended = run("judges", "test", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert said in words(ended.err)


def test_a_key_that_is_not_set_is_told_by_its_variable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSENT_KEY", raising=False)
    model = {"base_url": "https://host/v1", "model": "m", "api_key_env": "ABSENT_KEY"}
    monkeypatch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": model}))
    ended = run("judges", "test", "safety", SAMPLES / "support-bot.jsonl", "--label", "safe")
    assert ended.code == 2
    assert ended.complaint.startswith("tracejudge: models.default.api_key_env: the variable ABSENT_KEY is not set")


@pytest.mark.parametrize("line", [b"{", b"\xff", b'{"trace_id": 7}'], ids=["no JSON", "no UTF-8", "no trace"])
def test_a_labelled_file_with_a_bad_line_is_not_measured(run: Run, line: bytes) -> None:
    ended = run("judges", "test", "safety", write_lines("t.jsonl", [labelled("yes"), line]), "--label", "safe")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("Error: line 2 is ")


# --- publish ---


def stored(redis: Redis, prefix: str) -> list[dict[str, Any]]:
    """Read the traces of the stream."""
    return [json.loads(fields[b"t"]) for _, fields in redis.xrange(f"{prefix}:traces") if b"t" in fields]


def test_the_traces_of_a_file_are_published(served: Run, redis: Redis, prefix: str) -> None:
    file = SAMPLES / "support-bot.jsonl"
    ended = served("publish", file)
    assert (ended.code, ended.out) == (0, "")
    assert words(ended.err).endswith("21 traces published, 0 lines skipped")
    given = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
    assert [trace["id"] for trace in stored(redis, prefix)] == [trace["id"] for trace in given]
    assert stored(redis, prefix)[0] == given[0]


def test_bad_lines_are_named_and_the_good_ones_published(
    served: Run, redis: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEJUDGE_MAX_TRACE_BYTES", "4KiB")
    lines = [
        labelled("yes", output="first"),
        b"",
        b"{SECRET",
        labelled("yes", output=7),
        {"service": "shop", "output": "SECRET"},
        b'{"output": "\xff"}',
        b"   ",
        b"[" * 100_000,
        labelled("yes", output="SECRET" * 1000),
        labelled("yes", output="last"),
    ]
    ended = served("publish", write_lines("t.jsonl", lines))
    assert (ended.code, ended.out) == (1, "")
    said = [line.rstrip() for line in ended.err.splitlines() if line.startswith("line ")]
    assert [re.sub(r"[\d,]+ bytes$", "N bytes", line) for line in said] == [
        "line 3: is no JSON",
        "line 4: is no trace: Expected `str`, got `int` - at `$.output`",
        "line 5: is no trace: Object missing required field `trace_id`",
        "line 6: is not UTF-8",
        "line 8: is no trace: Expected `object`, got `array`",
        "line 9: is longer than max_trace_bytes: N bytes",
    ]
    assert words(ended.err).endswith("2 traces published, 6 lines skipped")
    assert "SECRET" not in ended.err
    assert [trace["output"] for trace in stored(redis, prefix)] == ["first", "last"]


def test_of_many_bad_lines_ten_are_named(served: Run) -> None:
    ended = served("publish", write_lines("t.jsonl", [b"{"] * 25))
    assert ended.code == 1
    assert re.findall(r"^line (\d+):", ended.err, re.MULTILINE) == [str(number) for number in range(1, 11)]
    assert words(ended.err).endswith("0 traces published, 25 lines skipped")


def test_standard_input_is_published(tmp_path: Path, redis: Redis, redis_url: str, prefix: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACEJUDGE_")}
    # Disabled is for services that publish by the way, not for who asks for nothing else.
    environment |= {"TRACEJUDGE_REDIS_URL": redis_url, "TRACEJUDGE_PREFIX": prefix, "TRACEJUDGE_DISABLED": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "worker.cli", "publish", "-"],
        input=b"".join(json.dumps(labelled("yes", output=f"Größe {number}")).encode() + b"\n" for number in range(5)),
        capture_output=True,
        cwd=tmp_path,
        env=environment,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, b"")
    assert words(ended.stderr.decode()).endswith("5 traces published, 0 lines skipped")
    assert [trace["output"] for trace in stored(redis, prefix)] == [f"Größe {number}" for number in range(5)]


def test_more_than_the_buffer_holds_is_published_without_a_drop(
    served: Run, redis: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is read far faster than Redis takes it."""
    monkeypatch.setattr(publish, "_FLUSH_EVERY", 50)
    monkeypatch.setattr(publish, "_FLUSH_EVERY_BYTES", 20_000)
    lines = [labelled("yes", output="x" * (number % 5000)) for number in range(500)]
    assert served("publish", write_lines("t.jsonl", lines)).code == 0
    assert len(stored(redis, prefix)) == 500


def test_what_redis_did_not_take_is_exit_code_one(served: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracejudge, "flush", lambda _timeout: False)
    ended = served("publish", SAMPLES / "support-bot.jsonl")
    assert ended.code == 1
    assert words(ended.err).endswith("21 traces published, 0 lines skipped; not all arrived")


# --- account ---


def test_the_account_is_one_document_with_the_names_of_the_contract(served: Run) -> None:
    ended = served("account", "--json")
    assert (ended.code, ended.err) == (0, "")
    document = ended.document
    assert list(document) == ACCOUNT_KEYS
    assert document == {**dict.fromkeys(ACCOUNT_KEYS, 0), "reasons": {}}


def test_what_was_published_and_not_read_is_unread(served: Run) -> None:
    served("publish", SAMPLES / "summariser.jsonl")
    ended = served("account", "--json")
    assert ended.code == 0
    counted = {name: amount for name, amount in ended.document.items() if amount}
    assert counted == {"published": 21, "unread": 21}


def test_the_account_for_people_prints_every_name_and_reason(served: Run, redis: Redis, prefix: str) -> None:
    books = {"chosen": 1300, "scored": 1298, "unscored": 2, "unscored:refusal": 2}
    redis.hset(f"{prefix}:account:all", mapping=books)
    ended = served("account")
    assert (ended.code, ended.err) == (0, "")
    rows = [line.split()[:2] for line in ended.out.splitlines()]
    assert [row[0] for row in rows if row[0] in ACCOUNT_KEYS] == ACCOUNT_KEYS[:-1]
    assert ["chosen", "1,300"] in rows
    assert rows[rows.index(["unscored", "2"]) + 1] == ["refusal", "2"]
    assert ["lost", "0"] in rows


@pytest.mark.parametrize(("scored", "lost"), [(1, 2), (5, -2)], ids=["lost", "counted twice"])
def test_books_that_do_not_balance_are_exit_code_one(
    served: Run, redis: Redis, prefix: str, scored: int, lost: int
) -> None:
    redis.hset(f"{prefix}:account:all", mapping={"chosen": 3, "scored": scored})
    as_json, as_table = served("account", "--json"), served("account")
    assert (as_json.code, as_table.code) == (1, 1)
    assert as_json.document["lost"] == lost
    assert ["lost", str(lost)] in [line.split()[:2] for line in as_table.out.splitlines()]


# --- tail ---

numbers = itertools.count()


def verdict(**fields: Any) -> Verdict:
    return Verdict(
        **{
            "evaluation_id": f"e{next(numbers)}",
            "outcome": "scored",
            "scores": (Score("safety", 1.0, 1.0, "yes", passed=True),),
            "metrics": ("safety",),
            "trace_id": TRACE_ID,
            "service": "shop",
            "judge": "safety",
            "judge_version": "0123456789abcdef0123456789abcdef",
            "judge_model": "lexical",
            "started_at": 1000.0,
            "duration_s": 2.0,
            **fields,
        }
    )


FAILED = {"scores": (Score("safety", 0.0, 0.0, "no", passed=False),)}
UNSCORED = {"outcome": "unscored", "reason": "refusal", "note": "the model declined to answer", "scores": ()}
ABSTAINED = {"outcome": "abstained", "scores": ()}
UNRATED = {"scores": (Score("length", 0.5),)}


class Outbox:
    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._stream = f"{prefix}:verdicts"

    def add(self, *verdicts: Verdict, kind: str = "j", version: str = "1") -> list[str]:
        """Write entries; gives the ids of their evaluations."""
        for one in verdicts:
            self._redis.xadd(self._stream, {"v": version, kind: msgspec.json.encode(one)})
        return [one.evaluation_id for one in verdicts]


@pytest.fixture
def outbox(redis: Redis, prefix: str) -> Outbox:
    return Outbox(redis, prefix)


def test_tail_prints_each_verdict_as_a_line_of_json(served: Run, outbox: Outbox) -> None:
    given = [verdict(rationale="Two\nlines\u2028and more"), verdict(**FAILED), verdict(**UNSCORED)]
    outbox.add(*given)
    ended = served("tail", "--json", "--last", "3", "--count", "3")
    assert (ended.code, ended.err) == (0, "")
    assert [msgspec.convert(line, Verdict) for line in ended.lines] == given


def test_tail_begins_with_the_last_few_in_order_and_ends_after_a_count(served: Run, outbox: Outbox) -> None:
    ids = outbox.add(*(verdict() for _ in range(10)))
    lines = served("tail", "--json", "--last", "5", "--count", "3").lines
    assert [line["evaluation_id"] for line in lines] == ids[5:8]


def test_tail_may_show_only_what_did_not_pass(served: Run, outbox: Outbox) -> None:
    _, failed, _, unscored, _, dead = (
        *outbox.add(verdict(), verdict(**FAILED), verdict(**ABSTAINED), verdict(**UNSCORED), verdict(**UNRATED)),
        *outbox.add(verdict(**{**UNSCORED, "reason": "timeout"}), kind="d"),
    )
    lines = served("tail", "--failed", "--json", "--last", "100", "--count", "3").lines
    assert [line["evaluation_id"] for line in lines] == [failed, unscored, dead]


def test_tail_passes_over_what_it_cannot_read(served: Run, outbox: Outbox, redis: Redis, prefix: str) -> None:
    first = outbox.add(verdict())
    outbox.add(verdict(), version="2")
    redis.xadd(f"{prefix}:verdicts", {"v": "1", "j": b"{"})
    redis.xadd(f"{prefix}:verdicts", {"x": "y"})
    last = outbox.add(verdict())
    lines = served("tail", "--json", "--last", "5", "--count", "2").lines
    assert [line["evaluation_id"] for line in lines] == first + last


def test_tail_for_people_is_a_line_each(served: Run, outbox: Outbox) -> None:
    outbox.add(
        verdict(rationale="So\n it is."),
        verdict(**FAILED),
        verdict(**UNRATED),
        verdict(**ABSTAINED),
        verdict(**UNSCORED),
    )
    outbox.add(verdict(**{**UNSCORED, "reason": "timeout", "note": None}), kind="d")
    ended = served("tail", "--last", "6", "--count", "6")
    assert [line.rstrip() for line in ended.out.splitlines()] == [
        "shop 4bf92f35 safety: safety yes So it is.",
        "shop 4bf92f35 safety: safety no",
        "shop 4bf92f35 safety: length 0.50",
        "shop 4bf92f35 safety: abstained",
        "shop 4bf92f35 safety: unscored refusal the model declined to answer",
        "shop 4bf92f35 safety: dead timeout",
    ]


HOSTILE = {
    "closing mark": "[/dim]",
    "style": "[bold red]all is well[/]",
    "link": "[link=http://evil]click[/link]",
    "backslash": "\\[/dim]",
    "backslash at the end": "ends with \\",
    "terminal": "\x1b[2J\x1b]0;title\x07",
    "direction": "\u202eevil",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_text_of_a_trace_commands_the_screen(served: Run, outbox: Outbox, text: str) -> None:
    outbox.add(verdict(service=text, trace_id=text, rationale=text))
    ended = served("tail", "--last", "1", "--count", "1")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("\n") == 1
    assert ended.out.rstrip("\n").isprintable()
    if text.isprintable():
        assert ended.out.count(text) >= 2


@pytest.fixture
def store(redis_url: str, prefix: str) -> Iterator[Store]:
    store = Store(redis_url, Keys(prefix))
    yield store
    store.close()


def added_after_the_first_look(store: Store, outbox: Outbox) -> list[str]:
    """Let two verdicts come once somebody has asked Redis something, and give their ids then."""
    call, ids = store.call, []

    def adding(command: Any) -> Any:
        found = call(command)
        store.call = call
        ids.extend(outbox.add(verdict(), verdict()))
        return found

    store.call = adding
    return ids


@pytest.mark.parametrize("known", [0, 3])
def test_tail_follows_what_comes_after_it_began(store: Store, outbox: Outbox, known: int) -> None:
    outbox.add(*(verdict() for _ in range(known)))
    ids = added_after_the_first_look(store, outbox)
    following = tail.follow(store)
    assert [next(following).verdict.evaluation_id for _ in range(2)] == ids


@pytest.mark.parametrize("known", [0, 1, 3])
def test_tail_goes_on_from_the_last_few_without_a_gap(store: Store, outbox: Outbox, known: int) -> None:
    last = outbox.add(*(verdict() for _ in range(known)))[-2:]
    ids = added_after_the_first_look(store, outbox)
    following = tail.follow(store, last=2)
    assert [next(following).verdict.evaluation_id for _ in range(len(last) + 2)] == last + ids


def test_json_goes_to_standard_output_whole(served: Run, outbox: Outbox) -> None:
    """No width of a terminal and no style of rich breaks a document."""
    outbox.add(verdict(rationale="x" * 5000, note="[bold]"))
    (line,) = served("tail", "--json", "--last", "1", "--count", "1").lines
    assert (line["rationale"], line["note"]) == ("x" * 5000, "[bold]")


def test_lines_of_a_file_are_read_one_by_one() -> None:
    lines = publish.read_traces(io.StringIO('{"trace_id": "1", "service": "s", "output": ""}\n\n{\n'))
    assert [(line.number, line.error) for line in lines] == [(1, None), (3, "is no JSON")]
