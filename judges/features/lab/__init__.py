"""The judges as functions of Python, in scripts and notebooks."""
