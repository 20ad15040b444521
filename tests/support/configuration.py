"""What tests of the configuration share: rows of keys with their variables, and mistakes with their messages."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from worker.core.config.loading import load
from worker.core.config.settings import Settings, SettingsError
from worker.core.features import Feature, installed
from worker.installed import MODULES

FILE = "tracejudge.toml"
MODEL = '[models.default]\nbase_url = "https://host/v1"\nmodel = "m"\n'
RULE = '[[rules]]\nname = "all"\njudges = ["safety"]\n'
SECRET = "sk-proj-Abc123"  # noqa: S105 - nobody's
QUOTE = "the URL has an @ after the host; quote / ? # @ in a password as %2F %3F %23 %40"
NAME_THE_VARIABLE = "give the name of the variable that holds the secret, as API_KEY, never the secret"
Variables = Mapping[str, tuple[str, object]]
"""By key: the text of a variable, and the value that it sets."""


@dataclass(frozen=True)
class Mistake:
    """Something wrong, and the whole line that says so."""

    message: str
    text: str | bytes | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)


def in_file(text: str | bytes, message: str) -> Mistake:
    return Mistake(f"tracejudge.toml: {message}", text)


def keys_of(features: Iterable[Feature]) -> set[str]:
    """Return the keys that features add to the configuration."""
    return {table.key for feature in features for table in feature.tables}


def features_in(package: str) -> list[Feature]:
    """Return what is installed of `base` or of `features`."""
    return [feature for feature in installed() if f"worker.{package}.{feature.name}.feature" in MODULES]


def check_variable(key: str, rows: Variables, other_key: str | None) -> None:
    """Check that the variable of a key sets it, with another key if it is refused alone."""
    assert Settings.from_keys(**{key: rows[key][1]}) != Settings(), "the row sets the default"
    keys = {name: rows[name] for name in (key, other_key) if name is not None}
    loaded = load({f"TRACEJUDGE_{name.upper()}": text for name, (text, _) in keys.items()})
    assert loaded == Settings.from_keys(**{name: value for name, (_, value) in keys.items()})


def check_mistake(mistake: Mistake) -> None:
    """Check that a mistake in the file of the working directory is refused in one line without the secret."""
    if mistake.text is not None:
        Path(FILE).write_bytes(mistake.text if isinstance(mistake.text, bytes) else mistake.text.encode())
    with pytest.raises(SettingsError) as caught:
        load(mistake.variables, None, mistake.arguments)
    message = str(caught.value)
    assert message == mistake.message
    assert message.isprintable(), "one line, and nothing a terminal obeys"
    assert SECRET not in message
