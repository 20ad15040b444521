"""The stub of the package ``judges``: the names that it exports, with the description of each judge, for editors."""

from pathlib import Path
from typing import Final

import judges
from judges.features.lab import api
from judges.registry import catalogue

FOLDER: Final = Path(judges.__file__).parent
_HEAD: Final = "# Written by `make generate`; change the code, not this file.\n"


def pages() -> dict[str, str]:
    """Return the stub by the name of its file."""
    exported = sorted(api.__all__)
    imports = "".join(f"    {name},\n" for name in exported)
    names = "".join(f'    "{name}",\n' for name in sorted([*exported, *catalogue()]))
    head = f"{_HEAD}\nfrom judges.features.lab.api import (\n{imports})\n\n__all__ = [\n{names}]\n\n"
    described = (f'{name}: JudgeFunction\n"""{api.built_in(name).__doc__}\n"""\n' for name in catalogue())
    return {"__init__.pyi": head + "".join(described)}
