"""Input that could not be used: the last invalid entries, and the fields that were left out of traces."""

from typing import Final

from worker.core.features import Feature, Parts, Selector


def _select(parts: Parts) -> Selector:
    from worker.base.input.unusable import UnusableInput

    return UnusableInput(parts.ledger.store)


FEATURE: Final = Feature(name="input", select=_select)
