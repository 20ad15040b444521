"""`tracejudge lint` and `tracejudge init`: all findings at once, each at its line; a file that is right and stays."""

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
from cli_parts import Run

from worker.cli.lint import CODES, lint, parse_key
from worker.config.loading import load
from worker.config.settings import SettingsError

MANY = """\
redis_url = "redis://host/first"
retenton = "5h"
batch_size = 0

[models.default]
provider = "opneai"
base_url = "https://host/v1"
model = "m"

[models.second]
base_url = "https://host/v1"
api_key_env = "sk-abc"
model = "n"

[cascades.both]
first = "second"
then = "default"
rate = 0.1

[[rules]]
name = "one"
judges = ["safty", "groundednes", "safety"]
rate = "5%"

[[rules]]
judges = ["safety"]
model = "second"

[[rules]]
name = "three"
where = { service = "x", hass = ["context"] }
judges = ["safety"]
model = "gone"
"""
ALLOWED = """\
[models.default]
base_url = "https://host/v1"
model = "m"
api_key_env = "NOT_SET_HERE"

[models.again]
base_url = "https://host/v1"
model = "m"

[models.spare]
base_url = "https://host/v1"
model = "spare"

[budgets.all]
usd_per_day = 5.0

[[calibrations]]
judge = "safety"
model = "clf"
threshold = 0.5
judge_version = "ffffffffffffffff"

[models.clf]
provider = "decisions"
base_url = "https://host/v1"
model = "clf"

[judges.relevance_truth_completeness]
reasoning = false

[[rules]]
name = "wide"
judges = ["safety", "groundedness"]
model = "default"

[[rules]]
name = "narrow"
where = { service = "shop-eu", environment = "prod" }
judges = ["safety"]
rate = 0.5
model = "default"

[[rules]]
name = "never"
judges = ["correctness"]
rate = 0.0
model = "clf"
"""


def codes(text: str, path: Path, **variables: str) -> dict[str, tuple[str, int | None]]:
    """Lint a file; return code and line of each finding by its key, or by its place."""
    path.write_text(text, encoding="utf-8")
    return {one.key or one.place: (one.code, one.line) for one in lint(variables, str(path))}


def test_all_mistakes_are_listed_each_with_its_line(tmp_path: Path) -> None:
    """Those that only follow from another one are not: no model is missing because its table is wrong."""
    path = tmp_path / "many.toml"
    found = codes(MANY, path, TRACEJUDGE_GATEWAY="{", TRACEJUDGE_MAX_OUTBX="7")
    assert found == {
        "TRACEJUDGE_GATEWAY": ("TJ001", None),
        "retenton": ("TJ002", 2),
        "batch_size": ("TJ007", 3),
        "rules[0].rate": ("TJ007", 23),
        "rules[1].name": ("TJ003", 25),
        "rules[2].where.hass": ("TJ002", 31),
        "redis_url": ("TJ007", 1),
        "models.default.provider": ("TJ007", 6),
        "models.second.api_key_env": ("TJ006", 12),
        "cascades.both.first": ("TJ005", 16),
        "rules[0].judges": ("TJ004", 22),
        "rules[2].model": ("TJ004", 33),
        "TRACEJUDGE_MAX_OUTBX": ("TJ107", None),
    }
    judges = [one.what for one in lint({}, str(path)) if one.key == "rules[0].judges"]
    assert judges == ["there is no judge 'safty'", "there is no judge 'groundednes'"]
    with pytest.raises(SettingsError, match=r"retenton: unknown key; did you mean retention\?"):
        load({}, str(path))  # the start names the first alone


def test_a_wrong_address_of_redis_is_a_wrong_value(tmp_path: Path) -> None:
    path = tmp_path / "address.toml"
    for address in ("rediss//host", "redis://host:99999/0", "redis://host/first", "unix://", "redis+sentinel://host"):
        path.write_text(f'redis_url = "{address}"', encoding="utf-8")
        (found,) = lint({}, str(path))
        assert (found.code, found.key, found.what) == ("TJ007", "redis_url", found.what.strip()), address


def test_what_is_allowed_and_hardly_meant_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "allowed.toml"
    assert codes(ALLOWED, path, TRACEJUDGE_OPENAI="x") == {
        str(path): ("TJ106", None),
        "rules[1]": ("TJ102", 36),
        "rules[2]": ("TJ101", 43),
        "models.again": ("TJ105", 6),
        "models.spare": ("TJ103", 10),
        "judges.relevance_truth_completeness": ("TJ103", 28),
        "budgets": ("TJ104", 14),
        "calibrations": ("TJ109", 17),
        "TRACEJUDGE_OPENAI": ("TJ107", None),
    }
    load({}, str(path))  # a start accepts all of it
    # A rule that judges more, or is not reached by the other, has an effect.
    for changed in ("rate = 0.5\nrepeat = 0.1", 'rate = 0.5\nalways = ["error"]', "rate = 0.5\nsecond_model = 'spare'"):
        path.write_text(ALLOWED.replace("rate = 0.5", changed), encoding="utf-8")
        assert "TJ102" not in {one.code for one in lint({}, str(path))}, changed


def test_each_code_is_one_kind_and_documented() -> None:
    page = Path(__file__).parents[3].joinpath("docs", "reference", "lint.md").read_text(encoding="utf-8")
    assert len({one.code for one in CODES}) == len({one.name for one in CODES}) == len(CODES)
    assert re.findall(r"^\| `(TJ\d{3})`", page, re.MULTILINE) == [one.code for one in CODES]
    assert parse_key("rules[0].where.service") == ("rules", 0, "where", "service")


def test_the_exit_code_and_the_lines_of_json(run: Run) -> None:
    rule = '[[rules]]\nname = "a"\njudges = ["safety"]\nmodel = "default"\n[models.default]\nprovider = "lexical"\n'
    for text, code in (
        (rule, 0),
        (rule + "[models.b]\nprovider = 'lexical'\nlabel = 'b'\n", 1),
        ("a = 1\n", 2),
        ("= 1", 2),
    ):
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


def test_init_writes_a_file_without_findings_and_never_over_another(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with monkeypatch.context() as wrong:
        wrong.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
        assert run("init", "--provider", "openai", "--output", "../elsewhere.toml").code == 0
    options = (
        "--provider",
        "openai",
        "--service",
        "shop-*",
        "--rate",
        "0.05",
        "--price",
        "0.4,1.6",
        "--usd-per-day",
        "20",
    )
    ended = run("init", *options)
    assert (ended.code, ended.err) == (0, "wrote tracejudge.toml; next: tracejudge doctor, then tracejudge worker\n")
    assert lint(os.environ) == []
    settings = load({})
    (rule,) = settings.rules
    assert (rule.where.service, rule.rate, settings.models["default"].model) == ("shop-*", 0.05, "gpt-6-luna")
    assert settings.budgets["all"].usd_per_day == 20
    for provider in ("openai", "anthropic"):
        printed = run("init", "--provider", provider, "--print").out
        assert "\nprice = { input = 0.1, cached_input = 0.01, output = 0.5 }" in printed, "from the table of models"
    assert "\n# price = {" in run("init", "--provider", "openai", "--model", "llama", "--print").out
    text = Path("tracejudge.toml").read_text(encoding="utf-8")
    assert (refused := run("init", "--provider", "lexical")).code == 2
    assert "tracejudge.toml exists; --force replaces it" in refused.err
    printed = run("init", "--provider", "lexical", "--print")
    assert (printed.code, Path("tracejudge.toml").read_text(encoding="utf-8")) == (0, text)
    assert run("init", "--provider", "lexical", "--force").code == 0
    assert Path("tracejudge.toml").read_text(encoding="utf-8") == printed.out != text
    assert list(Path.cwd().iterdir()) == [Path.cwd() / "tracejudge.toml"]
    Path("folder").mkdir()
    assert run("init", "--provider", "lexical", "--output", "folder").code == 0
    assert Path("folder/tracejudge.toml").read_text(encoding="utf-8") == printed.out
    assert "folder/tracejudge.toml exists" in run("init", "--output", "folder").err
    Path("other").touch()
    assert Path("folder/tracejudge.toml").stat().st_mode == Path("other").stat().st_mode, "as the user's other files"
    for url in ("redis://:secret@host/0", "redis://host/0?password=secret"):
        ended = run("init", "--provider", "lexical", "--force", "--redis-url", url)
        assert "readable by you only" in ended.err
        assert "secret" not in ended.err
        assert Path("tracejudge.toml").stat().st_mode & 0o777 == 0o600


def test_every_commented_line_of_the_file_can_be_switched_on(run: Run) -> None:
    text = run("init", "--print", "--provider", "openai").out
    examples = [line for line in text.splitlines() if re.match(r"# (\[|[a-z_]+ = )", line)]
    assert len(examples) > 10
    whole = "\n".join(line.removeprefix("# ") if line in examples else line for line in text.splitlines())
    Path("on.toml").write_text(whole, encoding="utf-8")
    assert [one for one in lint({"OPENAI_API_KEY": "k"}, "on.toml") if one.severity == "error"] == []


WRONG_ANSWERS = {
    ("--rate", "5%"): "--rate: must be a number from 0 to 1; write 5 % as 0.05",
    ("--provider", "opneai"): "there is no provider 'opneai'; did you mean openai?",
    ("--judges", "safty"): "there is no judge 'safty'; did you mean safety?",
    ("--model", "m", "--api-key-env", "sk-abc"): "never the secret",
    ("--redis-url", "redis://h/x"): "the path of redis_url must be a database number",
    ("--model", "m", "--price", "1"): "--price: write two numbers, as 0.10,0.50",
    ("--usd-per-day", "0"): "budgets.all",
}


def test_init_refuses_what_a_worker_would_and_writes_nothing(run: Run) -> None:
    for options, message in WRONG_ANSWERS.items():
        ended = run("init", *options)
        assert (ended.code, message in ended.err) == (2, True), (options, ended.err)
    assert not list(Path.cwd().iterdir())


def test_init_asks_on_a_terminal(tmp_path: Path) -> None:
    """A pseudo terminal answers each question when it is asked; those that an option answers are not."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "worker.cli", "init", "--service", "shop"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    answers = iter((b"\n", b"openai\n", b"http://host/v1\n", b"own\n", b"OWN_KEY\n", b"safety\n", b"0.5\n"))
    shown = b""
    while process.poll() is None or select.select([master], [], [], 0)[0]:
        if not select.select([master], [], [], 60)[0]:
            break
        try:
            shown += os.read(master, 4096)
        except OSError:  # the other side is closed
            break
        if shown.endswith(b"]: "):
            shown += b"?\n"
            os.write(master, next(answers))
    os.close(master)
    assert process.wait(60) == 0, shown
    assert next(answers, None) is None
    settings = load({}, str(tmp_path / "tracejudge.toml"))
    model = settings.models["default"]
    assert (model.base_url, model.model, model.api_key_env) == ("http://host/v1", "own", "OWN_KEY")
    assert [(rule.name, rule.judges, rule.rate) for rule in settings.rules] == [("shop", ("safety",), 0.5)]
    assert b"Services" not in shown


def test_the_shell_completes_commands_without_importing_them(tmp_path: Path) -> None:
    look = "import sys; from worker.cli import main\ntry: main()\nfinally: print('worker.cli.labels' in sys.modules)"
    for words, position, wanted in (
        ("tracejudge l", "1", ["plain,labels", "plain,lint", "False"]),
        ("tracejudge lint --j", "2", ["plain,--json", "False"]),
    ):
        given = {"_TRACEJUDGE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": position}
        command = [sys.executable, "-c", look]
        ended = subprocess.run(
            command, env=os.environ | given, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ended.stdout.splitlines() == wanted, ended.stderr
