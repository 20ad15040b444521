"""Commands and how they end, as tables: ``data/NAME.json`` beside the tests holds one case a line.

A case may have ``answers`` or ``results`` (of the model), ``env``, ``rows`` (of ``t.jsonl``: a label, or a label and
fields) and ``files``, then what a step has, or steps in ``then``: ``run`` (the command), ``code``, fragments of
``out`` and ``err``, patterns of the output (``match``), whole texts (``out_is``, ``err_is``), ``absent`` texts,
``document`` (the keys that are named) and ``written`` (the same of each line of ``out.jsonl``).
"""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from judges.endpoints import client
from support.cli_parts import Ended, Run, labelled, scripted, words, write_lines

__all__ = ["check_commands", "differences"]


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
    if "answers" in case:
        patch.setenv("TRACEJUDGE_MODELS", scripted(*case["answers"], **case.get("model", {})))
    if "results" in case:
        steps = [{"text": json.dumps({"rationale": "So.", "result": result})} for result in case["results"]]
        model = {"provider": "scripted", "model": "m", "script": write_lines("steps.jsonl", steps)}
        patch.setenv("TRACEJUDGE_MODELS", json.dumps({"default": model}))
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
