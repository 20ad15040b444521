"""What became of every trace, as counts that add up."""
