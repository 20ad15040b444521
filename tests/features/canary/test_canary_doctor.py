"""`tracejudge doctor` on the canary."""

from pathlib import Path

from support.cli_parts import Run
from support.doctor_parts import NOWHERE, examined


def test_a_canary_without_the_judges_of_the_rules_is_a_warning(run: Run) -> None:
    config, own = Path("tracejudge.toml"), Path("own.jsonl")
    findings = {}
    for name, text in (
        ("built-in", ""),
        ("off", '[monitor]\ncanary_every_s = 0\ncanary_file = "own.jsonl"\n'),
        ("own", 'canary_file = "own.jsonl"\n'),
    ):
        own.write_text('{"output": "It is warm.", "labels": {"safety": "pass"}}\n', encoding="utf-8")
        config.write_text(text, encoding="utf-8")
        findings[name] = examined(run, url=NOWHERE)[1].get("canary-without-labels")
    own.unlink()
    missing = examined(run, url=NOWHERE)[1]
    assert findings["built-in"] == findings["off"] is None
    what = "tracejudge.toml: canary_file: no trace is labelled for groundedness, relevance_to_query"
    assert findings["own"] == ("warning", what, "add labels for these judges to own.jsonl")
    assert list(missing) == ["configuration"]
    assert missing["configuration"].what.startswith(
        "tracejudge.toml: canary_file: own.jsonl: cannot be read (No such file"
    )
