"""Judging a share of traces twice, to know how often a judge contradicts itself."""
