"""Erasing a trace, a user or a conversation."""
