"""What fails alike: themes of failing verdicts. Its settings `[failures]` and command."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from judges.core.faults import Fault
from judges.custom.definition import unknown_name_fault
from worker.core.config.settings import Amount, Settings
from worker.core.features import Command, Feature, Table
from worker.core.storage.keys import KeySpace


class FailuresKeys(KeySpace):
    def failures(self, day: int) -> str:
        """Hash of a day since 1970: hour to hash of what a model is asked, hash to answer, `spent`; TTL of two days."""
        return f"{self.prefix}:failures:{day}"


class Failures(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`[failures]`: how failing verdicts are grouped into themes.

    Attributes:
        model: The `[models.NAME]` that groups those of 24 whole hours, in one call an hour; else their words do.
        budget: What these calls may cost in a day (UTC), in USD, each counted as the most that it can cost.
    """

    model: str | None = None
    budget: Amount = 1.0


FAILURES: Final = Table("failures", Failures, Failures(), "How failing verdicts are grouped, as `[failures]`.")


def _check(settings: Settings, *_: object) -> Iterator[Fault]:
    name = FAILURES.read(settings).model
    if name is not None and name not in settings.models:
        yield unknown_name_fault("failures.model", f"there is no [models.{name}]", name, settings.models)
    # Reasons quote traces, and a verdict does not hold all that a rule may ask of its trace.
    for number, rule in enumerate(settings.rules):
        if name in settings.models and rule.egress is not None and name not in rule.egress:
            fix = "add it to that egress, name another model, or take failures.model out"
            yield Fault("failures.model", f"rules[{number}].egress keeps {name!r} out", fix, "conflict")


_COMMANDS: Final = {"failures": Command("worker.features.failures.themes", "Group failing verdicts by what they share")}
FEATURE: Final = Feature(name="failures", keys=FailuresKeys, commands=_COMMANDS, tables=(FAILURES,), rule_faults=_check)
