"""Features, which can be removed: a folder each, known to the core by its row in worker/installed.py only."""
