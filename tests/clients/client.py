"""Run a client.

    python client.py ROOT_URL NAME

It is a row of `instrumentors.json`, which names variables of the environment and the scenarios with the instrumentor,
or a function of the modules below, which does all but for variables of such a row.
"""

import importlib
import json
import os
import sys
from pathlib import Path

GROUPS = ("agent_clients", "decorator_clients", "model_clients")
row = json.loads(Path("instrumentors.json").read_text()).get(sys.argv[2], {"function": sys.argv[2]})
os.environ |= row.get("environment", {})

import harness

if "function" in row:
    groups = map(importlib.import_module, GROUPS)
    next(function for group in groups if (function := getattr(group, row["function"], None)))()
else:
    scenarios = importlib.import_module(row["scenarios"]).SCENARIOS
    module, _, kind = row["instrumentor"].partition(":")
    flushes = [harness.provider.force_flush, *([harness.export_logs().force_flush] if "logs" in row else [])]
    getattr(importlib.import_module(module), kind)().instrument(tracer_provider=harness.provider)
    harness.run(scenarios, lambda: [flush() for flush in flushes])
