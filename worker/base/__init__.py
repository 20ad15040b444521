"""Parts of every installation beside the core: exports, the monitor, dead letters, look-ups, commands."""
