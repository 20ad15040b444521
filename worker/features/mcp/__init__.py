"""Read-only answers about quality for agents, by the Model Context Protocol."""
