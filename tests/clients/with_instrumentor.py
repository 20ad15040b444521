"""A client under an instrumentation, as a row of `instrumentors.json` says.

    python with_instrumentor.py ROOT_URL NAME

A row names variables of the environment, and the scenarios with the instrumentor, or a program that does all else.
"""

import importlib
import json
import os
import sys
from pathlib import Path

row = json.loads(Path("instrumentors.json").read_text())[sys.argv[2]]
os.environ |= row.get("environment", {})
if "program" in row:
    importlib.import_module(row["program"])
else:
    import harness

    scenarios = importlib.import_module(row["scenarios"]).SCENARIOS
    module, _, kind = row["instrumentor"].partition(":")
    flushes = [harness.provider.force_flush, harness.export_logs().force_flush] if "logs" in row else []
    getattr(importlib.import_module(module), kind)().instrument(tracer_provider=harness.provider)
    harness.run(scenarios, *([lambda: [flush() for flush in flushes]] if flushes else []))
