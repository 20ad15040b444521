"""The monitor: sums of verdicts per series and time, from which shares with intervals and drops are computed."""
