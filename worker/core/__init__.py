"""The spine: the way of a trace from the stream to its verdict."""
