"""Agreement of judges with human labels, and with each other."""
