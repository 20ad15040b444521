"""The settings of verbs that no rule matters to: they judge by the models that they are told."""

import os

from worker.configuration import load
from worker.settings import Settings

__all__ = ["offline_settings"]


def offline_settings(config: str | None) -> Settings:
    """Load the settings, also where no model is called default and no rule names another.

    Raises:
        SettingsError: With file, key and mend.
    """
    return load(os.environ, config, needs_rules=False)
