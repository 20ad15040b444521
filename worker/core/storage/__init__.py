"""Redis: client, keys and scripts."""
