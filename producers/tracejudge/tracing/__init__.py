"""Recording traces of functions and blocks: `observe`, `trace`, steps and streams."""
