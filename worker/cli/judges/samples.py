"""Sample traces for `judges show`: one that brings what a judge needs."""

from collections.abc import Iterator
from importlib.resources import files
from typing import IO, NamedTuple, TextIO, cast

import click

from judges.judge import Judge
from tracejudge import Trace
from worker.cli.traces import read_traces

__all__ = ["Sample", "find_sample"]


class Sample(NamedTuple):
    """A trace as the judge sees it, and where it stands."""

    trace: Trace
    file: str
    line: int


def find_sample(judge: Judge, file: TextIO | None) -> Sample:
    """Find the first trace that serves a judge, in a file or in our samples.

    Raises:
        click.ClickException: There is none; the message says what the traces lack.
    """
    lacking: dict[str, None] = {}
    for found in _of(file) if file is not None else _ours(judge):
        sample = found._replace(trace=judge.prepare(found.trace))
        missing = judge.missing(sample.trace)
        if missing is None:
            return sample
        lacking[missing] = None
    where = "our samples" if file is None else file.name
    mend = "; give a file with one by --trace FILE" if file is None else ""
    reasons = "; ".join(lacking) or "it holds no trace"
    raise click.ClickException(f"no trace of {where} serves {judge.name}: {reasons}{mend}")


def _of(file: IO[str]) -> Iterator[Sample]:
    for line in read_traces(cast("TextIO", file)):
        if line.trace is None:
            raise click.ClickException(f"{file.name}: line {line.number} {line.error}")
        yield Sample(line.trace, file.name, line.number)


def _ours(judge: Judge) -> Iterator[Sample]:
    folder = files("judges").joinpath("samples")
    places = (folder, folder.joinpath("references"), folder.joinpath("agents"))
    # Nearly every trace serves a judge that reads its steps, and few have any.
    for place in places if judge.exploration is None else reversed(places):
        for path in sorted(place.iterdir(), key=lambda path: path.name):
            if path.name.endswith(".jsonl"):
                with path.open("r", encoding="utf-8") as file:
                    for sample in _of(file):
                        yield sample._replace(file=path.name)
