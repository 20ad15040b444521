"""Statistics of the monitor: intervals, baselines, detection of drops, safety pages, shares corrected by labels.

The modules are pure: numbers in, numbers out, without Redis and without a clock. docs/statistics.md holds the
definitions and what simulations of this code reached.
"""
