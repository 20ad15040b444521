"""Traces that were left out, and why."""
