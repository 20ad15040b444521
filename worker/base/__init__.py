"""What every installation has beside the core: exports, the monitor, dead letters, look-ups, commands."""
