"""Reports and plans where traces are spread over several partitions."""

import pytest
from support.cli_parts import Run
from support.published import TRACES


@pytest.mark.usefixtures("published")
def test_report_and_plan_are_of_all_servers(run: Run) -> None:
    report = run("report", "--since", "1h", "--format", "json").document
    assert sum(row["judgements"] for row in report["rows"]) == len(TRACES)
    planned = run("plan", "--since", "1h", "--json").document
    assert planned["alternatives"][0]["sampled"] == len(TRACES)
