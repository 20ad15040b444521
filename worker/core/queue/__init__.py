"""What waits to be judged: batches, leases, ledger and notifications."""
