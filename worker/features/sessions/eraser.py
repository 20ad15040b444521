"""Erases the traces of conversations that are gathered."""

from collections.abc import Iterator
from operator import methodcaller

from worker.base.forget.forget import Eraser, Owner
from worker.features.sessions.conversations import StoredSession, StoredTrace, decode_session
from worker.features.sessions.feature import SessionKeys


class SessionEraser(Eraser):
    """Erases traces in ``session:<id>``."""

    def owners(self) -> Iterator[Owner]:
        """Yield the owners of all gathered traces."""
        for _, stored in self._conversations():
            yield from map(_owner_of, stored.traces)

    def erase(self) -> None:
        """Erase the traces of the target, which count as ``gathered``."""
        store, keys = self.run.store, self.run.store.keys
        key_of = SessionKeys(keys.prefix).session
        for session, stored in self._conversations():
            owned = [one for one in stored.traces if self.run.target.owns(_owner_of(one))]
            self.run.result.gathered += len(owned)
            if owned and not self.run.dry_run:
                names = (key_of(session), keys.sessions_due, keys.sessions, keys.account_now(), keys.account_all)
                flat = [part for one in owned for part in (one.number, one.publication)]
                store.run("forget_session", names, (session, *flat))

    def _conversations(self) -> Iterator[tuple[str, StoredSession]]:
        store = self.run.store
        members = store.call(lambda client: client.zrange(store.keys.sessions_due, 0, -1))
        for seen, raw in enumerate(members, 1):
            fields = store.call(methodcaller("hgetall", SessionKeys(store.keys.prefix).session(raw.decode())))
            yield raw.decode(), decode_session(fields)
            self.run.progress("conversations", seen)


def _owner_of(stored: StoredTrace) -> Owner:
    trace = stored.gathered.trace
    return Owner(trace.trace_id, trace.user_id, trace.session_id)
