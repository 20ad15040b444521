"""Requests to a judge model: the calls of one judge on one trace, and what their prompts hold."""
