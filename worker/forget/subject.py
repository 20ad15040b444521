"""Whose data is forgotten, and how it is told from a few fields of what Redis holds."""

from collections.abc import Iterable
from typing import NamedTuple

from worker.judging.verdicts import hashed_user
from worker.settings import Settings

__all__ = ["Owner", "Subject"]


class Owner(NamedTuple):
    """Whose something is. ``user_id`` is a hash in verdicts."""

    trace_id: object
    user_id: object = None


class Subject:
    """A trace, or a person with all traces of theirs that are known."""

    def __init__(self, settings: Settings, *, trace_id: str | None = None, user_id: str | None = None) -> None:
        """Take one of the two."""
        self.is_person = user_id is not None
        self.trace_ids = {trace_id} if trace_id is not None else set[str]()
        hashed = hashed_user(user_id, settings.sampling_key)
        self._user_ids = set[object]() if user_id is None else {user_id, hashed}

    def owns(self, owner: Owner) -> bool:
        """Tell whether something is theirs.

        Of a trace in which several people are named, a person's is what bears their id, and what bears none.
        """
        if self.is_person and owner.user_id is not None:
            return self._is_user(owner.user_id)
        return isinstance(owner.trace_id, str) and owner.trace_id in self.trace_ids

    def learn(self, owners: Iterable[Owner]) -> None:
        """Remember the traces of the person among those."""
        for owner in owners:
            if isinstance(owner.trace_id, str) and owner.user_id is not None and self._is_user(owner.user_id):
                self.trace_ids.add(owner.trace_id)

    def _is_user(self, user_id: object) -> bool:
        # A service in another language may have written a number: no trace of ours, but theirs.
        return user_id in self._user_ids or str(user_id) in self._user_ids
