"""What the tests stand on: real servers on the loopback, child programs, and readers of what they say."""
