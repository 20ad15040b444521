"""Files for running TraceJudge in production, and the generators of its rules and dashboards."""
