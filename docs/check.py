"""Check the documentation against the tree: links lead somewhere, commands exist, and nothing names this machine."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from worker.cli import verbs

_ROOT: Final = Path(__file__).parent.parent
_LINK: Final = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")
_VERB: Final = re.compile(r"^\s*(?:\$ )?(?:\.venv/bin/)?tracejudge ([a-z]+)", re.MULTILINE)
_TARGET: Final = re.compile(r"\bmake ([a-z]+)\b")
_CODE: Final = re.compile(r"```([a-z]*)\n(.*?)```|`([^`\n]+)`", re.DOTALL)
_MACHINE_PATH: Final = re.compile(r"(?<![\w.])/(?:root|home|work|Users)/\w+")


def main() -> int:
    """Print what is wrong, one line each; 1 when something is."""
    problems = [problem for path in _tracked() for problem in _problems(path)]
    print("\n".join(problems) or "documentation: no problem found")
    return int(bool(problems))


def _tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=_ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    return [_ROOT / name for name in listed.stdout.splitlines() if (_ROOT / name).is_file()]


def _problems(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    if path != Path(__file__):
        yield from (f"{_name(path)}: names a path of a machine: {path_[0]}" for path_ in _MACHINE_PATH.finditer(text))
    if path.suffix == ".md":
        for found in _LINK.finditer(text):
            if not (path.parent / found[1]).exists():
                yield f"{_name(path)}: link leads nowhere: {found[1]}"
        for code in _CODE.finditer(text):
            # Prompts, which are fenced as text, speak of other things than commands.
            if code[1] != "text":
                yield from _wrong_commands(path, code[2] or code[3])


def _wrong_commands(path: Path, code: str) -> Iterator[str]:
    for verb in _VERB.findall(code):
        if verb not in verbs():
            yield f"{_name(path)}: there is no `tracejudge {verb}`"
    makefile = (_ROOT / "Makefile").read_text(encoding="utf-8")
    for target in _TARGET.findall(code):
        if re.search(rf"^{target}:", makefile, re.MULTILINE) is None:
            yield f"{_name(path)}: there is no `make {target}`"


def _name(path: Path) -> str:
    return str(path.relative_to(_ROOT))


if __name__ == "__main__":
    sys.exit(main())
