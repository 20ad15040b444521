"""The first stage: from the stream of published traces to batches of chosen evaluations."""
