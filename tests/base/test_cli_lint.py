"""`tracejudge lint` and `tracejudge init`: all findings at once, each at its line; a file that is right and stays."""

import json
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.commands import Run
from support.tables import read_table
from transcripts import check_transcript

from judges.models.registry import known_model
from worker.base.doctor.lint import CODES, lint, parse_key
from worker.core.config.loading import load
from worker.core.config.settings import SettingsError

DATA = Path(__file__).parent / "data"
FINDINGS = read_table(__file__, "lint")
"""Code and line by key or place; pairs of services, and which of them is meant."""
RULE = '[[rules]]\nname = "a"\njudges = ["safety"]\nmodel = "default"\n[models.default]\nprovider = "lexical"\n'


def codes(text: str, path: Path, **variables: str) -> dict[str, list[Any]]:
    """Lint a file; return code and line of each finding by its key, or by its place."""
    path.write_text(text, encoding="utf-8")
    findings = lint(variables, str(path))
    return {row.key or row.place.removeprefix(f"{path.parent}/"): [row.code, row.line] for row in findings}


def test_all_mistakes_are_listed_each_with_its_line(tmp_path: Path) -> None:
    """Those that only follow from another one are not: no model is missing because its table is wrong."""
    path = tmp_path / "many.toml"
    findings = codes((DATA / "many.toml").read_text(), path, TRACEJUDGE_GATEWAY="{", TRACEJUDGE_MAX_OUTBX="7")
    assert findings == FINDINGS["many"]
    judges = [finding.what for finding in lint({}, str(path)) if finding.key == "rules[0].judges"]
    assert judges == ["there is no judge 'safty'", "there is no judge 'groundednes'"]
    with pytest.raises(SettingsError, match=r"retenton: unknown key; did you mean retention\?"):
        load({}, str(path))  # the start names the first alone
    for address in ("rediss//host", "redis://host:99999/0", "redis://host/first", "unix://", "redis+sentinel://host"):
        path.write_text(f'redis_url = "{address}"', encoding="utf-8")
        (finding,) = lint({}, str(path))
        assert (finding.code, finding.key, finding.what) == ("TJ007", "redis_url", finding.what.strip()), address
    # A configuration that is valid but suspicious is a warning.
    path, text = tmp_path / "allowed.toml", (DATA / "allowed.toml").read_text()
    assert codes(text, path, TRACEJUDGE_OPENAI="x") == FINDINGS["allowed"]
    load({}, str(path))  # a start accepts all of it
    # A rule that judges more, or is not reached by the other, has an effect.
    path.write_text(text.replace("rate = 0.5", 'rate = 0.5\nalways = ["error"]'), encoding="utf-8")
    assert "TJ102" not in {finding.code for finding in lint({}, str(path))}
    # Each code is one kind, and documented.
    page = Path(__file__).parents[2].joinpath("docs", "reference", "lint.md").read_text(encoding="utf-8")
    assert len({code.code for code in CODES}) == len({code.name for code in CODES}) == len(CODES)
    assert re.findall(r"^\| `(TJ\d{3})`", page, re.MULTILINE) == [code.code for code in CODES]
    assert parse_key("rules[0].where.service") == ("rules", 0, "where", "service")


def test_the_exit_code_and_the_lines_of_json(run: Run) -> None:
    spare = "[models.b]\nprovider = 'lexical'\nlabel = 'b'\n"
    for text, code in ((RULE, 0), (RULE + spare, 1), ("a = 1\n", 2), ("= 1", 2)):
        Path("t.toml").write_text(text, encoding="utf-8")
        ended = run("lint", "t.toml", "--json")
        lines = [json.loads(line) for line in ended.out.splitlines()]
        assert (ended.code, bool(lines)) == (code, code > 0), text
        assert all({"code", "name", "severity", "what", "fix", "place"} <= set(line) for line in lines)
        assert all(line["fix"] for line in lines)
        assert {"error": 2, "warning": 1}.get(lines[0]["severity"] if lines else "", 0) == code
    shown = run("lint", "t.toml")
    assert shown.out.startswith("t.toml: error TJ001 unreadable-file: is not TOML")
    assert run("lint", "t.toml", "--config", "t.toml").code == 2
    assert "TJ108" in run("lint").out, "without a file the heuristic judges"


def test_tables_of_dialects_are_checked_and_written_in_their_other_form(run: Run) -> None:
    Path("nameless.toml").write_text('[[rules]]\nname = "a"\njudges = ["safety"]\n[[rules]]\nnam = "b"\n')
    table = {
        "name": "acme",
        "prefixes": ["acme."],
        "kinds": {"acme.step": {"completion": "llm"}},
        "input": {"acme.question": "text", "acme.request by acme.type": "value"},
        "output": {"acme.answer": "text"},
        "tool": {"name": '/name ~ ^call "(.+)"$'},
        "model": ["acme.engine"],
    }
    Path("t.toml").write_text(RULE, encoding="utf-8")
    Path("acme.json").write_text(json.dumps(table), encoding="utf-8")
    written = Path("dialects.d/acme.toml")

    def check() -> None:
        assert tomllib.loads(written.read_text(encoding="utf-8")) == table
        assert json.loads(Path("again.json").read_text(encoding="utf-8")) == table

    def spoil() -> None:
        for file in (written, Path("acme.json")):
            file.write_text(file.read_text(encoding="utf-8").replace('"text"', '"txt"'), encoding="utf-8")

    def name_each() -> None:
        assert not Path("third.toml").exists()
        for place, name in enumerate(("one", "one", "two", "gen_ai")):
            Path(f"{place}.json").write_text(json.dumps({**table, "name": name, "model": "acme.engine"}), "utf-8")

    def take_names() -> None:
        """Of several tables with one name each but the first is named, beside the other's file."""
        Path("dialects.d/3.toml").write_text(Path("dialects.d/2.toml").read_text().replace("two", "gen_ai"))
        Path("dialects.d/left.json").write_text("{}", encoding="utf-8")
        written.unlink()

    def replace() -> None:
        shutil.rmtree("dialects.d")
        written.parent.mkdir()
        written.write_text("= 1", encoding="utf-8")

    own, to_toml, plain = f"lint {written}", f"lint acme.json --to {written}", ("lint acme.json", "lint t.toml")
    steps: list[str | Callable[[], object]] = [
        *("lint --config nameless.toml", *plain, to_toml, f"{own} --to again.json", "lint t.toml", check, spoil),
        *("lint t.toml --json", f"{own} --json", "lint acme.json --json", "lint acme.json --to third.toml", name_each),
        *(f"lint {place}.json --to dialects.d/{place}.toml" for place in range(4)),
        *(take_names, "lint t.toml --json", lambda: shutil.move("dialects.d/2.toml", "elsewhere.toml")),
        *("lint elsewhere.toml --to out.json", "lint elsewhere.toml --to x.yaml", replace, "lint t.toml --json"),
        *("lint t.toml --to x.json", "lint --to x.json"),
    ]
    check_transcript(run, "lint", steps)


def test_init_writes_a_file_without_findings_and_never_over_another(run: Run) -> None:
    ended = run("init")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.startswith("wrote tracejudge.toml; edit it")
    assert lint({}) == []
    (rule,) = load({}).rules
    assert (rule.judges, rule.rate) == (("groundedness", "relevance_to_query", "safety"), 1)
    file = Path("tracejudge.toml")
    text = file.read_text(encoding="utf-8")
    file.write_text("# mine\n", encoding="utf-8")
    assert (refused := run("init")).code == 2
    assert "tracejudge.toml exists; --force replaces it" in refused.err
    assert run("init", "--print").out == text
    assert file.read_text(encoding="utf-8") == "# mine\n"
    assert run("init", "--force").code == 0
    assert file.read_text(encoding="utf-8") == text
    Path("folder").mkdir()
    assert run("init", "--output", "folder").code == 0
    assert Path("folder/tracejudge.toml").read_text(encoding="utf-8") == text
    assert "folder/tracejudge.toml exists" in run("init", "--output", "folder").err
    for url, needs_key in (("http://localhost:8000/v1", False), ("http://[::1]/v1", False), ("https://host/v1", True)):
        text = run("init", "--base-url", url, "--model", "m", "--print").out
        assert (f'base_url = "{url}"\nmodel = "m"\n' in text, "\napi_key_env" in text) == (True, needs_key), url
        Path("local.toml").write_text(text, encoding="utf-8")
        model = load({"OPENAI_API_KEY": "k"}, "local.toml").models["default"]
        assert (model.base_url, model.model, model.provider) == (url, "m", "openai")
        # One machine answers few requests at once, and slowly.
        assert (model.timeout_s == 300, model.max_in_flight == 2) == (not needs_key, not needs_key), url
    absent = run("init", "--output", "absent/t.toml")
    assert (absent.code, "absent/t.toml: No such file" in absent.err) == (2, True)
    # Every commented line of the file can be switched on.
    text = run("init", "--print").out
    examples = [line for line in text.splitlines() if re.match(r"# (\[|[a-z_]+ = )", line)]
    assert len(examples) > 20
    whole = "\n".join(line.removeprefix("# ") if line in examples else line for line in text.splitlines())
    Path("on.toml").write_text(whole, encoding="utf-8")
    assert [finding for finding in lint({"OPENAI_API_KEY": "k"}, "on.toml") if finding.severity == "error"] == []
    settings = load({"OPENAI_API_KEY": "k"}, "on.toml")
    assert [settings.models[rule.model].model for rule in settings.rules] == ["gpt-6-luna"]
    price = settings.models["chat"].price
    assert msgspec.structs.asdict(price) == known_model("gpt-6-luna")["price"], "from the table of models"


def test_a_service_that_differs_by_two_letters_from_another_is_a_warning() -> None:
    """In long words only, and not by a number: both of `shop-eu` and `shop-us`, `bot-1` and `bot-2` may be meant."""
    for first, second, meant in FINDINGS["near"]:
        rows = [{"name": name, "judges": ["safety"], "where": {"service": name}} for name in (first, second)]
        rows[1]["name"] += " again"
        findings = [row for row in lint({"TRACEJUDGE_RULES": json.dumps(rows)}) if row.name == "near-service"]
        assert [repr(meant) in row.what for row in findings] == [True] * (meant is not None), (first, second, findings)
