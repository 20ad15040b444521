"""From `publish` to Redis: buffer, sender thread and connection."""
