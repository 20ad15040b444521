"""Who may send to the gateway: bearer tokens, their services, and their rates."""

import hmac
import time
from collections.abc import Callable, Mapping
from typing import Final

from worker.config.settings import Settings, SettingsError
from worker.telemetry.http_server import LOOPBACK, read_secret

_MIN_TOKEN_CHARS: Final = 16


class Client:
    """The holder of one token; without tokens everybody on this machine."""

    def __init__(
        self, name: str, service: str | None, rate: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.service = service
        self._rate = rate
        self._clock = clock
        self._level = rate or 0.0
        self._at_s = clock()

    def wait_s(self, items: int) -> float:
        """Count items against the rate; return 0, or after how many seconds they would be admitted.

        A request is admitted as a whole as long as the allowance is above zero, and a larger one than the rate leaves
        a debt. Otherwise it could never be sent.
        """
        if self._rate is None:
            return 0.0
        now = self._clock()
        self._level = min(self._rate, self._level + (now - self._at_s) * self._rate)
        self._at_s = now
        if self._level <= 0:
            return (1 - self._level) / self._rate
        self._level -= items
        return 0.0


class Access:
    """The tokens of one configuration. Its repr shows none."""

    def __init__(self, clients: Mapping[bytes, Client]) -> None:
        """Set the clients by token; an empty mapping admits everybody."""
        self._clients = tuple(clients.items())
        self._anonymous = None if clients else Client("anonymous", None, None)

    @classmethod
    def of(cls, settings: Settings, environment: Mapping[str, str]) -> "Access":
        """Read all tokens.

        Raises:
            SettingsError: A token is absent or unusable, or there is none and other machines may connect.
        """
        clients: dict[bytes, Client] = {}
        for name, token in settings.gateway.tokens.items():
            here = f"gateway.tokens.{name}.token"
            secret = read_secret(here, token.token_env, token.token_file, environment) or ""
            if not secret.isascii() or any(sign.isspace() for sign in secret) or len(secret) < _MIN_TOKEN_CHARS:
                fix = f"must be at least {_MIN_TOKEN_CHARS} ASCII characters without blanks; make one at random"
                raise SettingsError(f"{here}: {fix}")
            if secret.encode() in clients:
                raise SettingsError(f"{here}: another token has the same value; make each at random")
            clients[secret.encode()] = Client(name, token.service, token.rate)
        if not clients and settings.gateway.host not in LOOPBACK:
            fix = 'set [gateway.tokens.NAME] with token_env, or host = "127.0.0.1"'
            raise SettingsError(f"gateway.host: other machines may connect and no token is required; {fix}")
        return cls(clients)

    def client(self, authorization: str | None) -> Client | None:
        """Return the client of a header, None without a valid token; the time does not depend on the comparison."""
        if self._anonymous is not None:
            return self._anonymous
        scheme, _, credential = (authorization or "").strip().partition(" ")
        shown = credential.strip().encode("utf-8", "replace")
        found = None
        for token, client in self._clients:
            # No early end: the time must not tell which token is similar.
            if hmac.compare_digest(shown, token):
                found = client
        return found if scheme.lower() == "bearer" else None
