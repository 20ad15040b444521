"""Judging the same labelled traces every hour, to notice that a judge model drifts."""
