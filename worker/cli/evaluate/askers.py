"""Who judges offline: the models that were named, or nobody but the code of the judge itself."""

from collections.abc import Sequence
from typing import NamedTuple

import click

from judges.combine import Combine
from judges.judge import Judge
from worker.cli.evaluate.asking import Asker, Waiting
from worker.cli.options import open_model
from worker.redaction import Redaction
from worker.seats import Seat, panel
from worker.settings import Settings

__all__ = ["Askers", "Wanted", "open_askers"]


class Wanted(NamedTuple):
    """What the command line says of models.

    Attributes:
        names: Names of `[models.NAME]`.
        combine: How their verdicts are combined; not at all unless given.
        tries: How often one request is sent at most.
    """

    names: Sequence[str]
    combine: Combine | None
    tries: int


class Askers(NamedTuple):
    """All that may be asked.

    Attributes:
        models: One for each model; nothing where no judge asks any.
        code: For judges in code.
        together: Who combines the verdicts of the models.
    """

    models: Sequence[Asker]
    code: Asker
    together: Seat | None = None

    @property
    def in_words(self) -> str:
        """Name the judge models."""
        return ", ".join(asker.judge_model for asker in self.models or (self.code,))

    @property
    def in_flight(self) -> int:
        """How many calls may be under way together."""
        return sum(asker.max_in_flight for asker in self.models or (self.code,))

    def of(self, judge: Judge) -> Sequence[Asker]:
        """List who asks for a judge."""
        return self.models if judge.run is None else (self.code,)

    def combining(self, judge: Judge) -> Seat | None:
        """Say who combines what is found for a judge; code gives one verdict."""
        return self.together if judge.run is None else None

    async def aclose(self, judges: Sequence[Judge]) -> None:
        """Give back connections, and end what judges began."""
        for asker in self.models:
            await asker.aclose()
        for judge in judges:
            if judge.close is not None:
                await judge.close()


def open_askers(settings: Settings, judges: Sequence[Judge], wanted: Wanted, waiting: Waiting) -> Askers:
    """Open the models, where any of the judges asks one: code needs no endpoint and no key.

    Raises:
        click.UsageError: The models cannot be taken together.
        SettingsError: There is no such model, or it cannot be made from its settings.
    """
    redaction = Redaction.of(settings.redact)
    code = Asker(None, redaction)
    if all(judge.run is not None for judge in judges):
        return Askers((), code)
    models = [open_model(settings, name, wanted.tries, waiting) for name in wanted.names]
    judge_models = [model.settings.judge_model for model in models]
    if len(set(judge_models)) < len(judge_models):
        raise click.UsageError("--model: names a judge model twice; name each once")
    if wanted.combine is not None and len(models) == 1:
        raise click.UsageError("--combine needs several models; give --model for each, or leave --combine out")
    together = None if wanted.combine is None else panel(wanted.combine, judge_models)
    return Askers([Asker(model, redaction) for model in models], code, together)
