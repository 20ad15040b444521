"""What runs TraceJudge in production: data, and the generators that write it."""
