"""What `make bench` runs: figures side by side in one run, as ratios, on loopback, bounded in time."""
