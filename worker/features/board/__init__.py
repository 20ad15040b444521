"""The board: pages that show shares, verdicts and losses, and take human labels."""
