"""Delivery of verdicts to receivers, with retries and counted reasons."""
