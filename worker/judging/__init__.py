"""The second stage: a batch's lease, its evaluations, and their verdicts in the ledger."""
