"""Metrics, HTTP pages, health and logs of a worker, and its threads."""
