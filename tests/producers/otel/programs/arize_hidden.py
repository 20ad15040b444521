"""OpenInference's instrumentation with all texts hidden."""

import os

os.environ["OPENINFERENCE_HIDE_INPUTS"] = "true"
os.environ["OPENINFERENCE_HIDE_OUTPUTS"] = "true"

from arize import exports, instrument, retrieve, run_tool

__all__ = ["exports", "instrument", "retrieve", "run_tool"]
