"""The report: pass shares of a period with their intervals, coverage, cost, and limits of these figures."""
