"""From what a user wants to a replay's question, or to what is wrong with it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from judges.judge import Judge
from worker.replay.cursor import END
from worker.replay.question import Question, ruling
from worker.replay.times import id_at, moment
from worker.settings import Settings
from worker.store import Store
from worker.wording import nearest

__all__ = ["Asked", "Wanted", "WrongQuestionError", "ask"]

_HOUR_S: Final = 3600
_NEWEST: Final = "+"


class WrongQuestionError(ValueError):
    """What is wanted cannot be replayed; the text names the option and the mend."""


class Wanted(NamedTuple):
    """What a user wants; None is what was not said."""

    judges: Sequence[Judge]
    since: str
    until: str | None = None
    service: str | None = None
    model: str | None = None
    rate: float | None = None
    dry_run: bool = False


class Asked(NamedTuple):
    """A question, and the first entry it is about, or `END` where there is none."""

    question: Question
    next_id: str


class _Period(NamedTuple):
    """The bounds of a range of entries."""

    first: str
    last: str


def ask(settings: Settings, store: Store, wanted: Wanted) -> Asked:
    """Make the question of a new replay; its end is the newest entry of this moment.

    Raises:
        WrongQuestionError: It cannot be replayed.
        StoreError: Redis did not answer.
    """
    _check_freedom(settings, wanted)
    period = _period(settings, store, wanted)
    first = store.call(lambda client: client.xrange(store.keys.traces, period.first, period.last, count=1))
    last = store.call(lambda client: client.xrevrange(store.keys.traces, period.last, period.first, count=1))
    known = {"model": wanted.model, "rate": wanted.rate}
    question = Question(
        judges={judge.name: judge.version for judge in wanted.judges},
        first=first[0][0].decode() if first else period.first,
        last=last[0][0].decode() if last else period.first,
        service=wanted.service,
        dry_run=wanted.dry_run,
        **{name: value for name, value in known.items() if value is not None},  # type: ignore[arg-type]
    )
    return Asked(question, question.first if first and last else END)


def _check_freedom(settings: Settings, wanted: Wanted) -> None:
    """See that a model and a rate are said only where no rule says them."""
    said = "--model" if wanted.model is not None else "--rate" if wanted.rate is not None else None
    rules = {judge.name: ruling(settings, judge.name) for judge in wanted.judges}
    for judge, rule in rules.items():
        if said and rule is not None:
            raise WrongQuestionError(
                f"{said} is for judges that no rule names, and rule {rule!r} names {judge}: it says model and rate; "
                f"leave {said} out, or give --config a file with other rules"
            )
    model = wanted.model or "default"
    if None in rules.values() and model not in settings.models:
        raise WrongQuestionError(f"--model: there is no [models.{model}]{nearest(model, settings.models)}")


def _period(settings: Settings, store: Store, wanted: Wanted) -> _Period:
    """Find the bounds, by Redis' clock, which made the ids."""
    now_s = store.now_ms() / 1000
    since_s = _moment("--since", wanted.since, now_s)
    until_s = None if wanted.until is None else _moment("--until", wanted.until, now_s)
    if since_s > (now_s if until_s is None else until_s):
        raise WrongQuestionError(f"--since: must be before {'now' if until_s is None else '--until'}")
    if now_s - since_s > settings.ledger_ttl_s:
        most = f"{settings.ledger_ttl_s / _HOUR_S:g}h"
        raise WrongQuestionError(
            f"--since: goes back further than the ledger, which remembers {most} what was judged (retention and 24h "
            f"together); what is older could count twice; give at most {most}"
        )
    return _Period(id_at(since_s), _NEWEST if until_s is None else id_at(until_s))


def _moment(option: str, text: str, now_s: float) -> float:
    try:
        return moment(text, now_s)
    except ValueError as error:
        raise WrongQuestionError(f"{option}: {error}") from error
