"""Run a client.

    python client.py ROOT_URL NAME

It is a row of `instrumentors.json`, which names variables of the environment and the instrumentor with the function of
its scenarios, or a function of the modules below, which does all but for variables of such a row.
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

groups = [importlib.import_module(name) for name in GROUPS]
name = row.get("function") or row["scenarios"]
function = next(found for group in groups if (found := getattr(group, name, None)))
scenarios = function()
if "instrumentor" in row:
    module, _, kind = row["instrumentor"].partition(":")
    flushes = [harness.provider.force_flush, *([harness.export_logs().force_flush] if "logs" in row else [])]
    getattr(importlib.import_module(module), kind)().instrument(tracer_provider=harness.provider)
    harness.run(scenarios, lambda: [flush() for flush in flushes])
