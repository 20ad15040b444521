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


def test_words_print_the_rows_sections_or_paragraphs_that_have_them(served: Run) -> None:
    for words, place, said in (
        ("serverless", "gateway, Serverless: AWS Lambda, Cloud Run", "before the handler returns"),
        ("invalid_answer", "reference/errors, Why an evaluation has no score", "The answer cannot be parsed"),
        ("rate_limited", "reference/errors, Why an evaluation has no score", "The endpoint limits requests (429)"),
        ("TJ107", "reference/lint, Findings of `tracejudge lint`", "`unknown-variable`"),
        ("413", "gateway, Replies", "413 fewer items at once"),
        ("disk full", "troubleshooting, Messages of commands", "MISCONF"),
    ):
        ended = served("help", *words.split())
        part = ended.out.partition(f"{place}\n")[2].partition("\n\n")[0]
        assert (ended.code, said in part) == (0, True), (words, ended)
    ended = served("help", "TraceJudgeBudgetExausted")
    assert (ended.code, "Did you mean 'TraceJudgeBudgetExhausted'?" in ended.err) == (2, True)
