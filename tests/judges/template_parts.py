"""Judges with published templates, as the tests of templates use them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from judges.core.judge import Judge
from judges.custom import define

FACTS = (Path(__file__).parent / "templates" / "facts.yaml").read_text(encoding="utf-8")
"""A file in the published form, with the three variables of FACTS."""


def yaml(template: object, variables: Sequence[str], **more: object) -> str:
    """Write a template file; JSON is YAML."""
    return json.dumps({"prompt": {"template": template, "template_variables": list(variables), **more}})


def judge(text: str, table: Mapping[str, object] | None = None, name: str = "mine") -> Judge:
    return define(name, {"template": {"file": "mine.yaml", "text": text}, **(table or {})})


def asking(*variables: str, **table: object) -> Judge:
    """Make a judge whose template names each variable once."""
    return judge(yaml(" ".join(f"{{{{{name}}}}}" for name in variables), variables), table)
