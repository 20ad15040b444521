"""`tracejudge help`: pages and runbooks as text, and what is said about a topic that there is not."""

from support.cli_parts import Run


def test_help_prints_pages_and_runbooks_without_links(served: Run) -> None:
    listed = served("help").out.splitlines()
    assert {"alerts", "runbooks/cost", "reference/metrics"} <= {line.split()[0] for line in listed}
    assert next(line for line in listed if line.startswith("alerts ")).split(maxsplit=1)[1] == "Alerts"
    page = served("help", "alerts").out
    assert page.startswith("# Alerts\n")
    assert "](" not in page
    runbook = served("help", "TraceJudgeBudgetExhausted").out
    assert runbook.startswith("# TraceJudgeBudgetExhausted\n")
    assert "TraceJudgeBudgetOverspent" not in runbook


def test_an_unknown_topic_suggests_one(served: Run) -> None:
    ended = served("help", "TraceJudgeBudgetExausted")
    assert ended.code == 2
    assert "Did you mean 'TraceJudgeBudgetExhausted'?" in ended.err


def test_a_word_of_a_heading_leads_to_its_page(served: Run) -> None:
    assert "in a heading: gateway." in served("help", "serverless").err
