"""What importing the SDK costs and shows."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec

import tracejudge
from tracejudge import model

IMPORT = """
import json, sys, time
began = time.process_time()
import tracejudge
took_ms = (time.process_time() - began) * 1000
heavy = ("redis", "opentelemetry", "celery", "httpx", "asyncio", "ssl")
print(json.dumps([took_ms, [name for name in heavy if name in sys.modules]]))
"""


def import_anew(**variables: str) -> tuple[float, list[str]]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    output = subprocess.run(
        [sys.executable, "-c", IMPORT], check=True, capture_output=True, env=inherited | variables
    ).stdout
    took_ms, heavy = json.loads(output)
    return took_ms, heavy


def test_the_import_is_light() -> None:
    _, heavy = import_anew()
    assert heavy == []


def test_the_import_is_quick(tmp_path: Path) -> None:
    """In CPU time and the best of several, as other processes share this machine; compiled once, as a service is."""
    import_anew(PYTHONPYCACHEPREFIX=str(tmp_path))
    assert any(import_anew(PYTHONPYCACHEPREFIX=str(tmp_path))[0] < 60 for _ in range(15))


def test_the_public_names_are_these_and_sorted() -> None:
    public = {
        name
        for name, value in vars(tracejudge).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert tracejudge.__all__ == sorted(public)


def test_every_struct_of_the_wire_is_public() -> None:
    structs = {
        name
        for name, value in vars(model).items()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not msgspec.Struct
    }
    assert structs == set(model.__all__)
    assert structs <= set(tracejudge.__all__)
