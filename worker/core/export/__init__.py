"""The last stage of the worker: verdicts leave the outbox, each exporter with a consumer group of its own."""
