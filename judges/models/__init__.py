"""Chat models that judge: one protocol, one file an implementation."""
