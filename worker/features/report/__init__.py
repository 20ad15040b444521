"""The report: pass shares of a period with their intervals, coverage and cost, and what the figures cannot say.

`sources` reads the monitor's buckets, the outbox and the account, `archive` files of verdicts; `figures` computes rows
of them, without Redis and without a clock; `text` and `html` write them.
"""
