"""Commands and how they end: tables of them, files of lines, a scripted model, the doctor, judges of a user."""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import judges
from judges.core.verdict import Verdict
from judges.endpoints import client
from support.redis_kinds import TunedRedis
from worker.base.embedded import ServerBinary, find_servers
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.core.telemetry.health import Heartbeat

SAMPLES = Path(judges.__file__).parent / "samples"
SECRET = "s3cret"  # noqa: S105 - nobody's
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


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

IN_CODE = (
    "from judges.code import judge\n"
    "@judge(needs=['output'], version='1')\n"
    "def short(trace):\n    '''Is it short?'''\n    return len(trace.output) < 9\n"
)
"""A judge in code, of the name `short`."""


def words(text: str) -> str:
    return " ".join(text.split())


def write_lines(name: str, records: Sequence[object]) -> str:
    data = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in records)
    Path(name).write_bytes(data)
    return name


def written(name: str = "out.jsonl") -> list[Verdict]:
    """Read the verdicts of a file, all of whose lines must be whole."""
    *lines, end = Path(name).read_bytes().split(b"\n")
    assert end == b""
    return [msgspec.json.decode(line, type=Verdict) for line in lines]


def labelled(label: object, **fields: Any) -> dict[str, Any]:
    tags = {} if label is None else {"tags": {"safe": label}}
    return {"trace_id": TRACE_ID, "service": "shop", "output": "It is.", **tags, **fields}


def scripted(*answers: object, fails: bool = True, **model: Any) -> str:
    """Configure a model that answers one trace after the other: `yes`, `no`, or, if it fails, the name of a failure."""
    steps = [
        {"failure": answer}
        if fails and answer not in {"yes", "no", "unknown"}
        else {"text": json.dumps({"rationale": "So.", "result": answer})}
        for answer in answers
    ]
    settings = {"provider": "scripted", "model": "m", "script": write_lines("steps.jsonl", steps), **model}
    return json.dumps({"default": settings})


# --- tables of commands and how they end ---
def check_commands(
    run: Run, monkeypatch: pytest.MonkeyPatch, cases: dict[str, Any], prepare: Callable[[], object] = lambda: None
) -> None:
    """Run each case in a folder of its own, and name those that end in another way."""
    top, failed = Path.cwd(), list[str]()
    for number, (name, case) in enumerate(cases.items()):
        with monkeypatch.context() as patch:
            folder = top / f"{number}"
            folder.mkdir()
            patch.chdir(folder)
            patch.setattr(client, "_FIRST_BACKOFF_S", 0.001)
            prepare()
            _set_up(case, patch)
            for step in case.get("then", [case]):
                wrong = differences(run(*shlex.split(step["run"])), step)
                failed += [f"{name}: {step['run']}: {text}" for text in wrong]
    assert not failed, "\n".join(failed)


def _set_up(case: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    if answers := case.get("answers", case.get("results")):
        patch.setenv("TRACEJUDGE_MODELS", scripted(*answers, **case.get("model", {}), fails="results" not in case))
    for name, value in case.get("env", {}).items():
        patch.setenv(f"TRACEJUDGE_{name}", value if isinstance(value, str) else json.dumps(value))
    for name, content in case.get("files", {}).items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content, encoding="utf-8")
    rows = [row if isinstance(row, list) else [row, {}] for row in case.get("rows", [])]
    write_lines("t.jsonl", [labelled(label, **fields) for label, fields in rows])


def differences(ended: Ended, step: dict[str, Any]) -> list[str]:
    """List what a command has done in another way than its step says."""
    out, err = f"{ended.out}\n{words(ended.out)}", f"{ended.err}\n{words(ended.err)}"
    wrong = [f"exit code {ended.code}: {ended.err}"] if ended.code != step.get("code", 0) else []
    wrong += [f"no {text!r} in {ended.out}" for text in step.get("out", []) if text not in out]
    wrong += [f"no {text!r} in {ended.err}" for text in step.get("err", []) if text not in err]
    wrong += [
        f"no match of {text!r} in {ended.out}" for text in step.get("match", []) if not re.search(text, ended.out)
    ]
    wrong += [f"{text!r} in the output" for text in step.get("absent", []) if text in out + err]
    for key, text in (("out_is", ended.out), ("err_is", ended.err)):
        wrong += [f"{key}: {text!r}"] if step.get(key, text) != text else []
    if "document" in step:
        wrong += _other(ended.document, step["document"], "document")
    if "written" in step:
        lines = [json.loads(line) for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines()]
        wrong += _other(lines, step["written"], "written")
    return wrong


def _other(value: Any, expected: Any, path: str) -> list[str]:
    """Compare the named keys: one that is absent is null. With ``exact`` there is no other key."""
    if isinstance(expected, dict) and isinstance(value, dict):
        named = {key: each for key, each in expected.items() if key != "exact"}
        wrong = [f"{path}: {sorted(value)}"] if "exact" in expected and value.keys() != named.keys() else []
        return wrong + [text for key, each in named.items() for text in _other(value.get(key), each, f"{path}.{key}")]
    if isinstance(expected, list) and isinstance(value, list) and len(value) == len(expected):
        pairs = enumerate(zip(value, expected, strict=True))
        return [text for number, pair in pairs for text in _other(*pair, f"{path}.{number}")]
    if expected == "VERSION":
        return [] if re.fullmatch("[0-9a-f]{32}", str(value)) else [f"{path}: {value!r}"]
    same = value == (pytest.approx(expected) if isinstance(expected, float) else expected)
    return [] if same and isinstance(value, bool) == isinstance(expected, bool) else [f"{path}: {value!r}"]


# --- the doctor ---
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


# --- traces of several partitions ---
TRACES: list[dict[str, Any]] = [
    {
        "trace_id": f"{number:032x}",
        "service": "shop",
        "input": "Is it warm?",
        "output": "It is." if number % 2 else "It is not.",
        "user_id": "u-1" if number < 6 else "u-2",
        **({"session_id": f"s-{number % 4}"} if number % 3 == 0 else {}),
    }
    for number in range(24)
]


# --- judges of a user ---
POLITE = 'asks = "Is it polite?"\ninstructions = "Is {{ outputs }} polite?"\n'
GRADED = 'instructions = "How good is {{ outputs }}?"\nresult = { integer = [1, 5], pass_at = 4 }\n'
LABELS = 'instructions = "What is {{ outputs }}?"\nresult = { labels = ["bug", "question"], pass = ["question"] }\n'
STEPS = 'instructions = "Was every promise of {{ trace }} kept?"\n'
FACTS = 'template = "facts.yaml"\nanswer = { as = "facts_grounding" }\n'
TEMPLATE = """\
prompt:
  template: "Look for {{response}} in {{context_document}}, for {{user_request}}."
  template_variables: [user_request, context_document, response]
  metadata: {description: "Does it stand there?", version: 1.0, tags: [a, "\\e[2J"]}
"""
FILES = {"polite": POLITE, "grade": GRADED, "labels": LABELS, "steps": STEPS, "facts": FACTS}

BROKEN: Mapping[str, tuple[str, str]] = {
    "key": (f"{POLITE}resutl = 'boolean'", "broken.toml: resutl: unknown key; did you mean result?"),
    "no TOML": ("a = = b", "broken.toml: is not TOML: Invalid value (at line 1, column 5); fix it there"),
    "template": (
        FACTS,
        "broken.toml: template: facts.yaml: cannot be read (No such file or directory); name a template file",
    ),
}
"""Files that are no judges, and the line that says so."""


def write_own_judges() -> None:
    """Write judges into a folder of judges, and name it in the configuration."""
    folder = Path("mine")
    folder.mkdir()
    for name, text in FILES.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    (folder / "facts.yaml").write_text(TEMPLATE, encoding="utf-8")
    Path("tracejudge.toml").write_text('judges_folder = "mine"\n', encoding="utf-8")
