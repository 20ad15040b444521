"""The import of the SDK: loaded modules and public names."""

import json
import subprocess
import sys
from types import ModuleType

import msgspec

import tracejudge
from tracejudge import model

IMPORT = """
import json, sys
import tracejudge
heavy = ("tracejudge.wrap", "redis", "opentelemetry", "celery", "httpx", "asyncio", "ssl")
print(json.dumps([name for name in heavy if name in sys.modules]))
"""


def test_the_import_is_light() -> None:
    """How long it takes is measured by `make bench`; what makes it slow is what it loads."""
    output = subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True).stdout
    assert json.loads(output) == []


def test_the_public_names_are_these_and_sorted() -> None:
    public = {
        name
        for name, value in vars(tracejudge).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert tracejudge.__all__ == sorted(public | {"wrap_anthropic", "wrap_openai"})  # loaded by their first use


def test_every_struct_of_the_wire_is_public() -> None:
    structs = {
        name
        for name, value in vars(model).items()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not msgspec.Struct
    }
    assert structs <= set(tracejudge.__all__)
