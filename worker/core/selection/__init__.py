"""Which traces are judged by what: stream entries, sampling, and the batches that result."""
