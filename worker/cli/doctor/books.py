"""The books, the dead letters and the circuits: what workers have had to give up on."""

from collections.abc import Sequence

from worker.books import read_account
from worker.cli.doctor.finding import Finding, broken, ok, warning
from worker.cli.doctor.words import circuit_words
from worker.measure import measure
from worker.store import Store

__all__ = ["books", "circuits", "dead_letters"]


def books(store: Store) -> Sequence[Finding]:
    """See whether the books balance."""
    lost = read_account(store).lost
    if lost == 0:
        return [ok("books", "they balance")]
    what = f"{lost:,} lost" if lost > 0 else f"{-lost:,} counted twice"
    return [broken("books", f"they do not balance: {what}", "look on with `tracejudge account`")]


def dead_letters(store: Store) -> Sequence[Finding]:
    """See whether evaluations were given up."""
    dead = measure(store).dead
    if not dead:
        return [ok("dead letters", "none")]
    mend = "look at them with `tracejudge dead list`, then `dead retry` or `dead drop`"
    return [warning("dead letters", f"{dead:,} evaluations were given up", mend)]


def circuits(store: Store) -> Sequence[Finding]:
    """See whether workers leave a judge model alone because it fails or rejects them."""
    words = circuit_words(store)
    left_alone = sorted({model for word in words for model, is_open in word.items() if is_open})
    if not left_alone:
        return [ok("circuits", "none is open")]
    mend = "mend the endpoint or its key; workers try again by themselves, and their log says what it answered"
    return [broken("circuits", f"left alone, since it fails or rejects us: {', '.join(left_alone)}", mend)]
