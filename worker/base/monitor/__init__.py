"""The monitor: sums of verdicts per series and time, and the statistics of docs/statistics.md made of them."""
