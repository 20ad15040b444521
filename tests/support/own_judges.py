"""Judges of a user in a folder that the configuration names."""

from collections.abc import Mapping
from pathlib import Path

POLITE = 'asks = "Is it polite?"\ninstructions = "Is {{ outputs }} polite?"\n'
GRADED = 'instructions = "How good is {{ outputs }}?"\nresult = { integer = [1, 5], pass_at = 4 }\n'
LABELS = 'instructions = "What is {{ outputs }}?"\nresult = { labels = ["bug", "question"], pass = ["question"] }\n'
STEPS = 'instructions = "Was every promise of {{ trace }} kept?"\n'
FACTS = 'template = "facts.yaml"\nanswer = { as = "facts_grounding" }\n'
TEMPLATE = """\
prompt:
  template: "Look for {{response}} in {{context_document}}, for {{user_request}}."
  template_variables: [user_request, context_document, response]
  metadata: {description: "Does it stand there?", version: 1.0, tags: [a, "\\e[2J"]}
"""
FILES = {"polite": POLITE, "grade": GRADED, "labels": LABELS, "steps": STEPS, "facts": FACTS}

BROKEN: Mapping[str, tuple[str, str]] = {
    "key": (f"{POLITE}resutl = 'boolean'", "broken.toml: resutl: unknown key; did you mean result?"),
    "no TOML": ("a = = b", "broken.toml: is not TOML: Invalid value (at line 1, column 5); fix it there"),
    "template": (
        FACTS,
        "broken.toml: template: facts.yaml: cannot be read (No such file or directory); name a template file",
    ),
}
"""Files that are no judges, and the line that says so."""


def write_own_judges() -> None:
    """Write judges into a folder of judges, and name it in the configuration."""
    folder = Path("mine")
    folder.mkdir()
    for name, text in FILES.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    (folder / "facts.yaml").write_text(TEMPLATE, encoding="utf-8")
    Path("tracejudge.toml").write_text('judges_folder = "mine"\n', encoding="utf-8")
