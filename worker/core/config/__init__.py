"""The settings: loading, checks and the texts of their errors."""
