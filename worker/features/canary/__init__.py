"""Judging the same traces each day, to notice that a judge model drifts."""
