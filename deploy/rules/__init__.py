"""The Prometheus rules: their tables, and the generator of their files."""
