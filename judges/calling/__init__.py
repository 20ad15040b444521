"""One judge on one trace: check, cut, ask, read, score."""
