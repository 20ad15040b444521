"""Negative feedback that comes after its trace has the trace judged."""
