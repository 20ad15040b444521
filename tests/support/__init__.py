"""Support of the tests: real servers on the loopback, child programs, and readers of their output."""
