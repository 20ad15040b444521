"""Alerts on single failing verdicts of safety judges."""
