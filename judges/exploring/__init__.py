"""The loop in which a judge model reads a trace by tools until it gives its verdict, within limits."""
