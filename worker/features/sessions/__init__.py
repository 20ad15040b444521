"""Judging whole conversations."""
