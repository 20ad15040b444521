"""Judging stored traces again."""
