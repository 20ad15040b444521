"""Offline evaluation and the measuring of judges."""
