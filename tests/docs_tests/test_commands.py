"""Every command of every page, in one installation with a real Redis, a worker, a gateway and a board.

What cannot run here stands in data/commands.json with the reason.
"""

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pages import ELSEWHERE, PAGES, ROOT, WALKED, background, blocks, needs, of_kind, run, shell_lines, without_files
from support.decision_endpoint import DecisionEndpoint
from support.processes import free_port, wait_until
from support.tables import read_table

from worker.base.embedded import EmbeddedRedis

DATA = Path(__file__).parent / "data"
TABLE = read_table(__file__, "commands")
NOT_RUN: Mapping[str, str] = TABLE["not run"]
"""Begins of commands that cannot run here, with the reason."""
CODES: Mapping[str, int] = TABLE["codes"]
"""Exit codes other than 0, by the end of the command."""
RUN_ON = ("tracejudge worker", "tracejudge gateway", "tracejudge board", "tracejudge tail --last 20")
"""Commands that run until Ctrl-C; they do so beside the others."""
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
        text = (DATA / "installation.toml").read_text(encoding="utf-8")
        for name, place in {"REDIS": redis.url, "DECIDER": f"{decider.root_url}/v1", **ports}.items():
            text = text.replace(name, str(place))
        configuration = folder / "tracejudge.toml"
        configuration.write_text(f"{text}\n{(DATA / 'away.toml').read_text(encoding='utf-8')}", encoding="utf-8")
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
