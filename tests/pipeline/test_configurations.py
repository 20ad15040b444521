"""`tracejudge doctor` compares the configuration that it reads with that of the programs that run."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.cli_parts import Run
from support.processes import Program, wait_until

from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.core.telemetry.health import live_workers

CONFIG = """\
redis_url = "{url}"
prefix = "{prefix}"
judges_folder = "judges.d"
metrics_port = 0

[gateway]
port = 0
metrics_port = 0

[[rules]]
name = "mine"
judges = ["polite"]
rate = {rate}
"""


@pytest.mark.usefixtures("_patient_doctor")
def test_worker_gateway_and_board_have_the_file_s_or_are_named(
    run: Run, tmp_path: Path, redis_url: str, prefix: str
) -> None:
    """With a judge of the folder, a relative and a whole path, other ports, and from another folder."""
    folder = tmp_path / "etc"
    (folder / "judges.d").mkdir(parents=True)
    (folder / "judges.d" / "polite.toml").write_text("instructions = 'Is {{ outputs }} polite?'\n", encoding="utf-8")
    file = folder / "tracejudge.toml"
    file.write_text(CONFIG.format(url=redis_url, prefix=prefix, rate=1), encoding="utf-8")
    store = Store(redis_url, Keys(prefix))
    with ExitStack() as stack:
        for name, arguments, place in (
            ("worker", ("--roles", "ingest", "--config", "etc/tracejudge.toml"), tmp_path),
            ("gateway", ("--metrics-port", "0", "--config", file), tmp_path),
            ("board", ("--port", "0"), folder),
        ):
            stack.enter_context(Program("-m", "worker.cli", name, *arguments, folder=place))
        wait_until(lambda: len(live_workers(store)) == 3, what="three heartbeats")

        def part() -> dict[str, str]:
            parts = json.loads(run("doctor", "--json", "--config", file).out)["parts"]
            (finding,) = [part for part in parts if part["name"] == "configurations"]
            return dict(finding)

        assert (part()["result"], part()["what"]) == ("ok", "3 programs run with this one"), part()
        file.write_text(CONFIG.format(url=redis_url, prefix=prefix, rate=0.5), encoding="utf-8")
        finding = part()
        assert finding["result"] == "warning"
        assert [name in finding["what"] for name in ("worker ", "gateway ", "board ")] == [True, True, True], finding
    store.close()
