"""The third stage: verdicts leave the outbox, each exporter with a consumer group of its own."""
