"""Every command of every page, in one installation with a real Redis, a worker, a gateway and a board.

What cannot run here stands in `NOT_RUN` with the reason.
"""

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pages import (
    ELSEWHERE,
    PAGES,
    ROOT,
    WALKED,
    Command,
    background,
    blocks,
    matches,
    needs,
    of_kind,
    read_page,
    run,
    shell_lines,
    without_files,
    write_files,
)
from support.decision_endpoint import DecisionEndpoint
from support.ports import free_port
from support.processes import wait_until

from worker.base.embedded import EmbeddedRedis

NOT_RUN: Mapping[str, str] = {
    "curl -s http://localhost:9093": "no Alertmanager here; tests/deploy send it alerts",
    "amtool ": "no Alertmanager here",
    "docker ": "no container engine; tests/deploy runs what the file starts",
    "helm ": "no cluster; tests/deploy renders what each line installs",
    "kubectl ": "no cluster; tests/deploy checks the objects that it would make",
    "make ": "it is this suite, or what .ci/run runs",
    "python3.11 -m venv": "the environment is there",
    "pip ": "it needs the network; .ci/run installs the same",
    "redis-cli --cluster ": "no cluster; tests/faults add, fill and remove masters",
    "redis-cli -h ": "no cluster; test_scaling_page moves a slot so",
    ".venv/bin/": "of a judge that the reader adds, or of a release; tests/judges and tests/deploy run the same",
    "export OTEL_": "tests/features/gateway runs examples with these variables",
    "export TRACEJUDGE_": "of a service; tests/producers set each",
    'eval "$(_TRACEJUDGE_COMPLETE': "of an interactive shell; tests/base completes words",
    "_TRACEJUDGE_COMPLETE=fish": "the same",
    "tracejudge init": "the installation has its file; tests/base writes some",
    "tracejudge up": "the parts run already; tests/features/up runs it",
    "tracejudge judges align": "hundreds of calls of a chat model; tests/judges run it",
    "tracejudge replay --continue": "the id of a replay that was interrupted; tests/base interrupts one",
    "tracejudge calibrate --judge safety --model": "its model answers by labels; tests/features/labels has one",
    "celery -A worker worker": "a second worker, for one model; tests/core starts it",
    "tracejudge worker --roles": "tests/core starts each role alone",
    "tracejudge worker --queues": "a second worker, for one model; tests/core starts it",
}
RUN_ON = ("tracejudge worker", "tracejudge gateway", "tracejudge board", "tracejudge tail --last 20")
"""Commands that run until Ctrl-C; they do so beside the others."""
CODES = {
    # The endpoint that made the dead letters is away, and this Redis keeps nothing on disk.
    "tracejudge doctor": 1,
    "tracejudge doctor --json": 1,
    "tracejudge doctor --ask": 1,
    "--archive verdicts.jsonl.gz": 1,  # verdicts of today, and not of May
    "--origin canary --judge JUDGE --json --last 50 --no-follow": 1,  # the first canary is an hour after the start
}
"""Exit codes other than 0, by the end of the command."""
CONFIGURATION = """
redis_url = "REDIS"
metrics_port = METRICS
give_up_after = "1s"
judges_folder = "judges.d"

[models.default]
provider = "lexical"
model = "lexical"
label = "gpt-6-luna"

[models.small]
provider = "lexical"
model = "lexical"
label = "small"

[models.cheap]
provider = "decisions"
base_url = "DECIDER"
model = "decider-1"

[[rules]]
name = "judged"
judges = ["groundedness", "safety", "facts_grounding"]

[gateway]
port = GATEWAY
metrics_port = 0

[board]
port = BOARD
"""
AWAY = """
[models.away]
base_url = "http://127.0.0.1:1/v1"
model = "away"

[[rules]]
name = "given up"
where = { service = "shop" }
judges = ["relevance_to_query"]
model = "away"
"""
"""Makes dead letters, and is taken out afterwards: the doctor would find it broken."""
PUBLISHED = """
import tracejudge
tracejudge.init(service="shop")
for number in range(5):
    tracejudge.publish(input="Hot?", output="Yes.", context=["Hot."], session_id="s-42", user_id="u-1729")
assert tracejudge.flush(20)
"""


class Installation:
    """A folder with the files that pages name, a configuration, and the programs that run beside the commands."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self.folder = folder
        redis, decider = ends.enter_context(EmbeddedRedis()), ends.enter_context(DecisionEndpoint())
        ports = {name: free_port() for name in ("METRICS", "GATEWAY", "BOARD")}
        self.env = {"TRACEJUDGE_REDIS_URL": redis.url, "TRACEJUDGE_CONFIG": str(folder / "tracejudge.toml")}
        text = CONFIGURATION.replace("REDIS", redis.url).replace("DECIDER", f"{decider.root_url}/v1")
        for name, port in ports.items():
            text = text.replace(name, str(port))
        configuration = folder / "tracejudge.toml"
        configuration.write_text(f"{text}{AWAY}", encoding="utf-8")
        (folder / "judges.d").mkdir()
        own = next(block.text for block in blocks(PAGES["docs/your-own-judge.md"]) if block.kind == "toml")
        (folder / "judges.d" / "clear_answer.toml").write_text(own, encoding="utf-8")
        self._fill()
        self.programs = [ends.enter_context(background(line, folder, self.env)) for line in RUN_ON]
        published = run(f"python -c '{PUBLISHED}' && tracejudge publish traces.jsonl", folder, env=self.env)
        assert published.code == 0, published.output
        self.places: dict[str, str] = {
            "localhost:9808": f"127.0.0.1:{ports['METRICS']}",
            "127.0.0.1:9808": f"127.0.0.1:{ports['METRICS']}",
            "127.0.0.1:4318": f"127.0.0.1:{ports['GATEWAY']}",
            "redis-cli": f"redis-cli -u {redis.url}",
            "SERVICE": "support-bot",
            "JUDGE": "groundedness",
        }
        wait_until(self._is_settled, what="verdicts and dead letters")
        configuration.write_text(text, encoding="utf-8")
        self.places["3f9a2c1b77aa"] = self.json_of("dead list --json")[0]["id"][:12]
        self.places["4bf92f3577b34da6a3ce929d0e0e4736"] = self.trace_ids[0]
        self.places["4bf92f"] = self.trace_ids[1][:6]
        self.call("labels import labels.jsonl --judge facts_grounding --drawn 0.05")

    def call(self, arguments: str) -> str:
        ended = run(f"tracejudge {arguments}", self.folder, env=self.env)
        assert ended.code == 0, ended
        return ended.output

    def json_of(self, arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.call(arguments).splitlines() if line.startswith("{")]

    def here(self, line: str) -> str:
        """Put the ids and addresses of this installation in place of those that pages show."""
        for shown, real in self.places.items():
            line = line.replace(shown, real)
        return line

    def _fill(self) -> None:
        samples = (ROOT / "judges" / "samples" / "support-bot.jsonl").read_text(encoding="utf-8")
        rows = [json.loads(line) for line in samples.splitlines()]
        self.trace_ids = [row["trace_id"] for row in rows]
        self._write("traces.jsonl", rows)
        self._write("mine.jsonl", rows[:1])
        self._write("labels.jsonl", [{"trace_id": name, "label": "pass"} for name in self.trace_ids])
        judges = "--judge judges.d/clear_answer.toml --judge groundedness"
        judged = self.json_of(f"evaluate traces.jsonl {judges} --output -")
        # The labels agree with the heuristic, so that `--min` is reached.
        found = {(one["trace_id"], one["judge"]): one["scores"][0]["passed"] for one in judged if one["scores"]}
        words = {True: "yes", False: "no", None: ""}
        for row in rows:
            clear, grounded = (found.get((row["trace_id"], judge)) for judge in ("clear_answer", "groundedness"))
            row["tags"] = {**row["tags"], "clear": words[clear], "grounded": words[grounded]}
        self._write("labelled.jsonl", rows)
        golden, _ = [text for page, text in of_kind("json") if page == "docs/labels.md"]
        (self.folder / "golden.jsonl").write_text(golden, encoding="utf-8")
        (table,) = [text for page, text in of_kind("json") if page == "docs/opentelemetry.md" and '"acme"' in text]
        (self.folder / "acme.json").write_text(table, encoding="utf-8")
        (self.folder / "verdicts.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, judged)).encode()))

    def _write(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        (self.folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")

    def _is_settled(self) -> bool:
        (account,) = self.json_of("account --json")
        return account["dead"] > 0 and account["waiting"] == 0 and account["scored"] > 0


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with ExitStack() as ends:
        yield Installation(tmp_path_factory.mktemp("installation"), ends)


def commands() -> list[str]:
    """List the commands of all pages, each once; those that differ in numbers alone are alike."""
    pages = {name: without_files(text) if name in WALKED else text for name, text in PAGES.items()}
    found = [line for name, text in pages.items() if name not in ELSEWHERE for line in shell_lines(text)]
    each: dict[str, str] = {}
    for line in found:
        each.setdefault(re.sub(r"\d+", "9", line), line)
    return list(each.values())


@pytest.mark.timeout(400)
@pytest.mark.slow("a hundred commands")
def test_commands_run(installation: Installation) -> None:
    needs("curl", "redis-cli")
    wrong, used = [], set()
    for line in commands():
        if reason := next((start for start in NOT_RUN if line.startswith(start)), None):
            used.add(reason)
            continue
        here = installation.here(line)
        if line in RUN_ON:
            continue
        for written in re.findall(r"--(?:output|out|svg) (\S+)", line):
            (installation.folder / written).unlink(missing_ok=True)
        ended = run(here, installation.folder, env=installation.env)
        wanted = next((code for end, code in CODES.items() if line.endswith(end)), 0)
        if ended.code != wanted:
            wrong.append(f"{here}\n  exit code {ended.code}: {ended.output[-600:]}")
    assert wrong == [], "\n".join(wrong)
    assert [program.poll() for program in installation.programs] == [None] * len(RUN_ON)
    assert used == set(NOT_RUN), f"in no page: {set(NOT_RUN) - used}"


SHOWN = ("docs/troubleshooting.md",)


@pytest.mark.parametrize("page", SHOWN)
def test_pages_print_what_they_show(page: str, tmp_path: Path) -> None:
    steps = read_page(PAGES[page])
    write_files(steps, tmp_path)
    shown = [step for step in steps if isinstance(step, Command)]
    for command in shown:
        line = re.sub(r" *# exit code \d+$", "", command.line)
        ended = run(line, tmp_path, env={"TRACEJUDGE_REDIS_URL": "redis://127.0.0.1:1/0"})
        assert ended.code == command.code, (line, ended.output)
        assert matches(command.output, ended.output), (line, ended.output)
    assert shown


def test_every_page_with_output_is_run() -> None:
    # They have tests of their own: test_labels_page.py, test_publishing_page.py.
    others = {"docs/labels.md", "docs/publishing.md"}
    assert {page for page, text in PAGES.items() if "```console" in text} - {*ELSEWHERE, *SHOWN, *WALKED} == others
