"""What the tests of `forget` share: an erasure of a trace, a person or a session, and a look at every key."""

from typing import Any

from support.stage_parts import Keyspace, make_trace, settings_of
from worker.base.forget.forget import ErasureCounts, ForgetTarget, Forgetting
from worker.core.config.serving import UserKeys
from worker.core.config.settings import Settings

SECRET = "the parcel holds a kite"  # noqa: S105 - a text
PERSON = "u-1729"


def forget(
    keyspace: Keyspace,
    number: int | None = None,
    *,
    trace_id: str | None = None,
    user_id: str | None = None,
    session_id: str | None = None,
    settings: Settings | None = None,
    **options: Any,
) -> ErasureCounts:
    settings = settings or settings_of(keyspace)
    user_keys = UserKeys(settings, keyspace.store).all()
    trace_id = trace_id if number is None else make_trace(number).trace_id
    subject = ForgetTarget(trace_id=trace_id, user_id=user_id, session_id=session_id, user_keys=user_keys)
    return Forgetting(keyspace.store, settings, subject, **options).run()


def forgotten(**amounts: int) -> ErasureCounts:
    return ErasureCounts(**amounts)


def assert_nowhere(keyspace: Keyspace, *texts: str) -> None:
    everything = repr(keyspace.everything())
    assert not [text for text in texts if text in everything]
