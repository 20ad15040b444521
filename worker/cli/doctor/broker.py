"""The broker, which carries wake-ups: the Redis of everything else, another one, or whatever Celery speaks with."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from kombu import Connection  # type: ignore[attr-defined]
from kombu.exceptions import KombuError

from worker.addresses import addresses
from worker.broker import broker as celery_broker
from worker.cli.doctor.connections import cause_of, chain
from worker.cli.doctor.finding import Finding, broken, ok
from worker.cli.doctor.permissions import broker_commands, permissions
from worker.cli.doctor.redis_server import reach
from worker.settings import Settings

__all__ = ["broker"]

_REDIS: Final = frozenset({"redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel"})
_CONNECT_S: Final = 4.0


def broker(settings: Settings) -> Sequence[Finding]:
    """See whether wake-ups can be sent; tried once, while Celery would try for ever."""
    url = settings.broker_url or settings.redis_url
    if ";" in url or urlsplit(url).scheme not in _REDIS:
        return [_celery_s(settings, addresses(url))]
    reached = reach("broker", url)
    if reached.result != "ok":
        return [reached]
    allowed = permissions("broker permissions", url, broker_commands(settings.queue))
    return [reached, allowed]


def _celery_s(settings: Settings, where: str) -> Finding:
    url, transport_options, use_ssl = celery_broker(settings)
    options = {"connect_timeout": _CONNECT_S, "ssl": use_ssl, "transport_options": transport_options}
    try:
        with Connection(url, **options) as connection:  # type: ignore[no-untyped-call]
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=_CONNECT_S)
    except ImportError as error:
        return broken("broker", f"its driver is not installed ({error.name})", "install what Celery needs for it")
    except (KombuError, OSError) as error:
        if any("AccessRefused" in type(each).__name__ for each in chain(error)):
            mend = "correct user, password and virtual host in TRACEJUDGE_BROKER_URL"
            return broken("broker", f"{where} refuses the user or the password", mend)
        return broken("broker", *cause_of(error, where, "the broker"))
    return ok("broker", where)
