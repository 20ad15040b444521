"""`tracejudge dead retry`: choose evaluations again that were given up."""

import sys
import time
from typing import Any, Final

import click
import msgspec

from judges.catalog import configured
from worker.cli.dead.selecting import chosen_options, require_choice, selected, selection, warn_of_unreadable
from worker.cli.options import CONFIG, JSON, NOTES, OUT, REDIS_URL, amount, open_store, settings_from
from worker.dead.letters import Letters
from worker.dead.retrying import SHARE_OF_WAITING, Retried, grouped, retry
from worker.ledger import DeadLetter
from worker.seats import Seats
from worker.settings import Settings
from worker.store import Store, StoreError

__all__ = ["retry_letters"]

_WAIT_S: Final = 0.5
_MIB: Final = 1024 * 1024


@click.command("retry")
@selection
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--dry-run", is_flag=True, help="Count them, and choose nothing.")
@CONFIG
@REDIS_URL
@JSON
def retry_letters(
    *, config: str | None, redis_url: str | None, everything: bool, dry_run: bool, as_json: bool, **options: Any
) -> None:
    """Choose evaluations again that were given up; workers judge them beside new traces.

    A letter keeps its id, and stays one until its verdict is there; then it counts as what the verdict says. One whose
    retry is under way is not chosen twice. One that cannot be made in `give_up_after` again is a letter as before, with
    the calls of all tries. It waits while a judge model has enough to do; Ctrl-C ends it, and who repeats
    it goes on.

    \b
    Examples:
      tracejudge dead retry --reason judge_rejected
      tracejudge dead retry --id 3f9a2c1b77aa
      tracejudge dead retry --all --dry-run
    """  # noqa: D301 - click's mark for lines that stay as they are
    chosen = chosen_options(options)
    require_choice(chosen, everything=everything)
    settings = settings_from(config, {"redis_url": redis_url})
    store = open_store(settings)
    wanted = selected(chosen, store)
    run = _Run(settings, store, dry_run=dry_run)
    try:
        ids = [found.letter.evaluation.id for found in run.letters.find(wanted, newest_first=False)]
        run.make(ids)
    finally:
        run.report(as_json=as_json)
    sys.exit(1 if run.letters.unreadable else 0)


class _Run:
    """A retry on the screen."""

    def __init__(self, settings: Settings, store: Store, *, dry_run: bool) -> None:
        self.letters = Letters(store)
        self._settings = settings
        self._seats = Seats(settings, configured(settings.judges))
        self._store = store
        self._dry_run = dry_run
        self._strangers: set[str] = set()
        self._counts = {"chosen": 0, "under_way": 0, "gone": 0, "batches": 0}

    def make(self, ids: list[str]) -> None:
        """Choose letters again, batch by batch."""
        for group in grouped(self.letters.read(ids), self._settings.batch_size):
            self._look_at_model(group[0].letter)
            if self._dry_run:
                busy = [found.letter.evaluation.id for found in group if found.retry.batch_id]
                free = [found.letter.evaluation.id for found in group if not found.retry.batch_id]
                self._count(Retried(free, busy, ()))
            else:
                self._give_way(group[0].letter.judge_model)
                self._count(retry(self._store, self._settings, group))

    def report(self, *, as_json: bool) -> None:
        """Say what was done."""
        warn_of_unreadable(self.letters)
        if as_json:
            document = {**self._counts, "unreadable": self.letters.unreadable, "dry_run": self._dry_run}
            print(msgspec.json.encode(document).decode())
            return
        chosen, busy = self._counts["chosen"], self._counts["under_way"]
        would = "would be " if self._dry_run else ""
        said = f"{amount(chosen, 'evaluation')} {would}chosen again"
        OUT.print(said + (f"; {busy:,} under way already" if busy else ""), highlight=False)

    def _count(self, retried: Retried) -> None:
        for name, ids in retried._asdict().items():
            self._counts[name] += len(ids)
        self._counts["batches"] += bool(retried.chosen)

    def _look_at_model(self, letter: DeadLetter) -> None:
        """Say where nobody may be there to judge: such a batch waits until a worker knows its model."""
        is_known = self._seats.find(letter.model, letter.judge_model) is not None
        if not is_known and letter.model not in self._strangers:
            self._strangers.add(letter.model)
            said = (
                f"there is no [models.{letter.model}] for {letter.judge_model} here: letters wait for a worker with it"
            )
            NOTES.print(said, markup=False, highlight=False, soft_wrap=True)

    def _give_way(self, judge_model: str) -> None:
        """Wait while the judge model has enough to do: the other half of the bound is left to live traces."""
        most = self._settings.max_waiting_bytes * SHARE_OF_WAITING
        is_told = False
        while (waiting := self._waiting(judge_model)) > most:
            if not is_told:
                is_told = True
                said = f"waits: {waiting / _MIB:,.0f} MiB are in batches for {judge_model}"
                NOTES.print(said, markup=False, highlight=False)
            time.sleep(_WAIT_S)

    def _waiting(self, judge_model: str) -> int:
        try:
            return int(self._store.call(lambda client: client.hget(self._store.keys.waiting, judge_model)) or 0)
        except StoreError:
            NOTES.print("stopped; repeat the command to go on")
            raise
