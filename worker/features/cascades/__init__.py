"""A second judge model for verdicts that the first is unsure of."""
