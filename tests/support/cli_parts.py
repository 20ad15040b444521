"""What the tests of all verbs use: how a command ended, files of lines, a model that follows a script."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import judges

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
