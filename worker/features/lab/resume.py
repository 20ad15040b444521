"""`tracejudge evaluate --resume`: verdicts that the output file of an interrupted run has are not made again."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from judges.core.verdict import PASSING_REASONS, Verdict

_decoder: Final = msgspec.json.Decoder(Verdict)


class WrittenVerdicts:
    """The final verdicts of an output file; of each only its place is in memory, since there may be millions."""

    def __init__(self, path: Path, made: Collection[tuple[str, str, str]]) -> None:
        """Read the file; ``made`` has judge, version and judge model of all verdicts that this run makes.

        A verdict that failed for a passing reason, such as `rate_limited`, and a line that was cut off when the run was
        killed, are taken out of the file.

        Raises:
            UsageError: A line is no verdict, or one of another configuration.
        """
        self._places: dict[tuple[str, Sequence[str]], list[tuple[int, int]]] = {}
        beside, end = path.resolve().with_name(f"{path.name}.resume"), 0
        try:
            with path.open("rb") as file, beside.open("wb") as kept:
                for number, line in enumerate(file, 1):
                    verdict = read_verdict(line, path, number, "give --output the file of the interrupted run")
                    if verdict is None or verdict.reason in PASSING_REASONS:
                        continue
                    if (by := (verdict.judge, verdict.judge_version, verdict.judge_model)) not in made:
                        what = f"{path}: line {number} is of {by[0]}, version {by[1][:8]}, by {by[2]}"
                        fix = "use configuration and options of the first run, or another --output"
                        raise click.UsageError(f"{what}, as this run does not judge; {fix}")
                    key = _key(verdict.evaluation_id, verdict.details.get("session"))
                    self._places.setdefault(key, []).append((end, len(line)))
                    end += kept.write(line)
            if end < path.stat().st_size:
                beside.replace(path.resolve())
        finally:
            beside.unlink(missing_ok=True)
        self._path = path

    @property
    def left(self) -> int:
        """How many verdicts were not taken."""
        return sum(map(len, self._places.values()))

    def take(self, evaluation_id: str, row: str, session: object = None) -> Verdict | None:
        """Return the verdict of an evaluation, once: a trace that is in the input twice has two.

        Raises:
            UsageError: It is of another text.
        """
        if not (places := self._places.get(_key(evaluation_id, session))):
            return None
        start, size = places.pop(0)
        with self._path.open("rb") as file:
            file.seek(start)
            verdict = _decoder.decode(file.read(size))
        if verdict.details.get("row", row) != row:
            what = f"{self._path} has a verdict of {verdict.judge} on another text of trace {verdict.trace_id}"
            raise click.UsageError(f"{what}; take its line out, or give another --output")
        return verdict


def read_verdict(line: bytes, path: Path, number: int, fix: str) -> Verdict | None:
    """Read a line; None if it was cut off; raises ``UsageError`` if it is no verdict."""
    try:
        return _decoder.decode(line) if line.endswith(b"\n") else None
    except (msgspec.DecodeError, RecursionError) as error:
        what = f"{path}: line {number} is no verdict as `evaluate --output` writes them"
        raise click.UsageError(f"{what}; {fix}") from error


def _key(evaluation_id: str, session: Any) -> tuple[str, Sequence[str]]:
    # A conversation that has grown since is judged anew.
    return evaluation_id, tuple(msgspec.to_builtins(session)["trace_ids"]) if session else ()
