"""The first stage of the worker: from the stream of published traces to batches of chosen evaluations."""
