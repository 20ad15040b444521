"""`tracejudge lint` and `tracejudge init`: all findings at once, each at its line; a file that is right and stays."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import msgspec
import pytest
from support.cli_parts import Run

from judges.models.registry import known_model
from worker.base.doctor.lint import CODES, lint, parse_key
from worker.core.config.loading import load
from worker.core.config.settings import SettingsError

DATA = Path(__file__).parent / "data"
RULE = '[[rules]]\nname = "a"\njudges = ["safety"]\nmodel = "default"\n[models.default]\nprovider = "lexical"\n'


def codes(text: str, path: Path, **variables: str) -> dict[str, tuple[str, int | None]]:
    """Lint a file; return code and line of each finding by its key, or by its place."""
    path.write_text(text, encoding="utf-8")
    return {finding.key or finding.place: (finding.code, finding.line) for finding in lint(variables, str(path))}


def test_all_mistakes_are_listed_each_with_its_line(tmp_path: Path) -> None:
    """Those that only follow from another one are not: no model is missing because its table is wrong."""
    path = tmp_path / "many.toml"
    findings = codes((DATA / "many.toml").read_text(), path, TRACEJUDGE_GATEWAY="{", TRACEJUDGE_MAX_OUTBX="7")
    assert findings == {
        "TRACEJUDGE_GATEWAY": ("TJ001", None),
        "retenton": ("TJ002", 2),
        "batch_size": ("TJ007", 3),
        "rules[0].rate": ("TJ007", 18),
        "rules[1].name": ("TJ003", 20),
        "rules[2].where.hass": ("TJ002", 26),
        "redis_url": ("TJ007", 1),
        "models.default.provider": ("TJ007", 6),
        "models.second.api_key_env": ("TJ006", 12),
        "rules[0].judges": ("TJ004", 17),
        "rules[2].model": ("TJ004", 28),
        "TRACEJUDGE_MAX_OUTBX": ("TJ107", None),
    }
    judges = [finding.what for finding in lint({}, str(path)) if finding.key == "rules[0].judges"]
    assert judges == ["there is no judge 'safty'", "there is no judge 'groundednes'"]
    with pytest.raises(SettingsError, match=r"retenton: unknown key; did you mean retention\?"):
        load({}, str(path))  # the start names the first alone
    for address in ("rediss//host", "redis://host:99999/0", "redis://host/first", "unix://", "redis+sentinel://host"):
        path.write_text(f'redis_url = "{address}"', encoding="utf-8")
        (finding,) = lint({}, str(path))
        assert (finding.code, finding.key, finding.what) == ("TJ007", "redis_url", finding.what.strip()), address


def test_a_valid_but_suspicious_configuration_is_a_warning(tmp_path: Path) -> None:
    path, text = tmp_path / "allowed.toml", (DATA / "allowed.toml").read_text()
    assert codes(text, path, TRACEJUDGE_OPENAI="x") == {
        str(path): ("TJ106", None),
        "rules[1]": ("TJ102", 27),
        "rules[2]": ("TJ101", 34),
        "models.again": ("TJ105", 6),
        "models.spare": ("TJ103", 10),
        "judges.relevance_truth_completeness": ("TJ103", 19),
        "TRACEJUDGE_OPENAI": ("TJ107", None),
    }
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
    ended = run("lint", "--config", "nameless.toml")
    assert ("did you mean name?" in ended.out + ended.err, "None" in ended.out + ended.err) == (True, False), ended
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
    assert (run("lint", "acme.json").code, run("lint", "t.toml").code) == (0, 0)
    assert run("lint", "acme.json", "--to", "dialects.d/acme.toml").code == 0
    written = Path("dialects.d/acme.toml")
    assert tomllib.loads(written.read_text(encoding="utf-8")) == table
    assert run("lint", str(written), "--to", "again.json").code == 0
    assert json.loads(Path("again.json").read_text(encoding="utf-8")) == table
    assert run("lint", "t.toml").code == 0, "with the table beside it"
    for file, name in ((written, "t.toml"), (written, str(written)), (Path("acme.json"), "acme.json")):
        text = file.read_text(encoding="utf-8").replace('"text"', '"txt"')
        file.write_text(text, encoding="utf-8")
        ended = run("lint", name, "--json")
        (finding,) = map(json.loads, ended.out.splitlines())
        assert (ended.code, finding["place"], finding["key"]) == (2, str(file), "input")
        assert "'acme.question' is 'txt'" in finding["what"]
        assert finding["fix"] == "there are messages, text, value"
    assert run("lint", "acme.json", "--to", "third.toml").code == 2
    assert not Path("third.toml").exists()
    # Of several tables with one name each but the first is named, beside the other's file.
    for place, name in enumerate(("one", "one", "two", "gen_ai")):
        fields = {**table, "name": name, "model": "acme.engine"}
        Path(f"{place}.json").write_text(json.dumps(fields), encoding="utf-8")
        assert run("lint", f"{place}.json", "--to", f"dialects.d/{place}.toml").code == (2 if name == "gen_ai" else 0)
    Path("dialects.d/3.toml").write_text(Path("dialects.d/2.toml").read_text().replace("two", "gen_ai"))
    Path("dialects.d/left.json").write_text("{}", encoding="utf-8")
    written.unlink()
    lines = [json.loads(line) for line in run("lint", "t.toml", "--json").out.splitlines()]
    assert [(line["place"], line["what"], line["code"]) for line in lines] == [
        ("dialects.d/1.toml", "dialects.d/0.toml has the name 'one' too", "TJ007"),
        ("dialects.d/3.toml", "a built-in table has the name 'gen_ai' too", "TJ007"),
        ("dialects.d/left.json", "no gateway reads tables in JSON", "TJ103"),
    ]
    assert lines[2]["fix"].endswith("lint dialects.d/left.json --to dialects.d/left.toml")
    shutil.move("dialects.d/2.toml", "elsewhere.toml")
    assert run("lint", "elsewhere.toml", "--to", "out.json").code == 0, "known by its keys"
    assert run("lint", "elsewhere.toml", "--to", "x.yaml").code == 2
    shutil.rmtree("dialects.d")
    written.parent.mkdir()
    written.write_text("= 1", encoding="utf-8")
    assert json.loads(run("lint", "t.toml", "--json").out)["code"] == "TJ001"
    assert run("lint", "t.toml", "--to", "x.json").code == 2
    assert run("lint", "--to", "x.json").code == 2


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


def test_every_commented_line_of_the_file_can_be_switched_on(run: Run) -> None:
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
    bot = "support-bot"
    for first, second, meant in (
        *((bot, "suport-bot", bot), (bot, "suppotr-bot", bot), (bot, "supportbot", bot), ("suport-*", bot, bot)),
        *((bot, "suport-*", bot), ("support-*", bot, None), (bot, bot, None), ("checkout-eu", "checkout-us", None)),
        *(("worker-1", "worker-2", None), ("search", "shop", None)),
    ):
        rows = [{"name": name, "judges": ["safety"], "where": {"service": name}} for name in (first, second)]
        rows[1]["name"] += " again"
        findings = [row for row in lint({"TRACEJUDGE_RULES": json.dumps(rows)}) if row.name == "near-service"]
        assert [repr(meant) in row.what for row in findings] == [True] * (meant is not None), (first, second, findings)
