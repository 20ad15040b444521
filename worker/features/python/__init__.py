"""Judges in Python: what the worker does for them beside judging."""
