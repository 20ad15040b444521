"""Checks of a configuration and of a running installation."""
