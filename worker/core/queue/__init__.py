"""Evaluations that wait: batches, leases, ledger and notifications."""
