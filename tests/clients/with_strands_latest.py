"""Strands Agents with the newer names of the conventions."""

import os

os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"

import with_strands  # noqa: F401
