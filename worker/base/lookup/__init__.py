"""Finding traces, verdicts and labels."""
