"""One file a kind of receiver: how a verdict becomes its requests, and how its answers are read."""
