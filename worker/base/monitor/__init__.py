"""The monitor: sums of verdicts per series and time, and the statistics made of them.

All modules but `series` and `watch` are pure: numbers in, numbers out, without Redis and without a clock.
docs/statistics.md holds the definitions and what simulations of this code reached.
"""
