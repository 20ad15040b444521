"""What can be removed from the judges."""
