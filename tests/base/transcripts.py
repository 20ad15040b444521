"""Command lines with their exit code and all that they print, compared with a file of data/transcripts.

UPDATE_GOLDEN=1 writes the files, for review. Times, ages and sizes of this machine are left out.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.commands import Part, Run
from support.tables import check_golden

from worker.base.doctor.finding import Finding

FOLDER = Path(__file__).parent / "data/transcripts"
CHANGING = {
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?": "TIME",
    r'("?(?:age_s|started_at|duration_s)"?: ?)[\d.e+-]+': r"\1N",
    r'("at":)\d+(\.\d+)?': r"\1N",
    r'(entry_id":")\d{13}-\d+': r"\1ID",
    r'(published_ms": ?)\d+': r"\1N",
    r"\d\.\d\d s and \d\.\d\d s of waiting": "some time",
    r'(version"?:? ?"?)[0-9a-f]{8}([0-9a-f]{24})?\b': r"\1VERSION",
    r'(replay"?:? ?"?)[0-9a-f]{8}\b': r"\1ID",
    r"known are [0-9a-f, ]+": "known are IDS",
    r"(?<=  )\d+[hms](?=  )": "AGE",
    r"[ \t]+$": "",
}


def check_transcript(
    run: Run, name: str, lines: Iterable[str | Callable[[], object]], *, secret: str | None = None, **names: Any
) -> None:
    """Run commands one after the other.

    Args:
        run: Runs one command.
        name: The file of the transcript.
        lines: The command lines, and what happens between them.
        secret: A text that no command may print.
        names: What these names stand for in the transcript, such as ids that differ in each run.
    """
    parts = []
    for line in lines:
        if callable(line):
            line()
            continue
        ended = run(*shlex.split(line))
        text = "".join((f"$ {line}\n", ended.out, *(f"! {each}\n" for each in ended.err.splitlines())))
        assert secret is None or secret not in text, line
        for label, value in names.items():
            text = text.replace(str(value), label.upper())
        for pattern, label in CHANGING.items():
            text = re.sub(pattern, label, text, flags=re.MULTILINE)
        parts.append(text + (f"= {ended.code}\n" if ended.code else ""))
    check_golden(FOLDER / f"{name}.txt", "\n".join(parts))


def check_findings(name: str, findings: Mapping[str, Part | Finding | Sequence[Part | Finding]]) -> None:
    """Compare what the doctor says in each case with a file; ports and folders of this machine are left out."""
    lines = []
    for case, found in findings.items():
        for finding in [found] if isinstance(found, Part | Finding) else found:
            fix = finding.mend if isinstance(finding, Part) else finding.fix
            lines += [f"{case}: {finding.result}: {finding.what}", *([f"    {fix}"] if fix else [])]
    text = "\n".join(lines).replace(str(Path.cwd()), "FOLDER")
    text = re.sub(r"\((?:[A-Z_]{8,}|self-signed [^)]*)\)", "(WHY)", text)  # in the words of OpenSSL
    check_golden(FOLDER.parent / f"doctor/{name}.txt", re.sub(r"(?<=[\w\]]):\d{4,5}\b", ":PORT", text) + "\n")
