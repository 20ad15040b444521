"""Features of the judges, which can be removed."""
