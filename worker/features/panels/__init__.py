"""Verdicts that several judge models give together."""
