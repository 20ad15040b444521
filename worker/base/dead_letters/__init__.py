"""Dead letters: evaluations given up. They are listed, retried by hand or automatically, and pruned."""
