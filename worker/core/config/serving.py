"""Secrets, certificates and addresses that settings name: checked, read and opened here.

Also the keys by which ids of end users are hashed, so that verdicts name nobody.
"""

import errno
import hashlib
import re
import secrets
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct

from judges.core.faults import Fault, ReportedError, SettingsError, fault_of
from judges.custom.definition import read_text
from worker.core.config.settings import MAX_KEY_BYTES, Settings

if TYPE_CHECKING:
    from worker.core.storage.client import Store  # the settings alone need no Redis client

# A secret pasted in place of the variable's name has other characters, as a rule.
_VARIABLE_NAME: Final = re.compile(r"[A-Z_][A-Z0-9_]{0,100}")
QUOTING: Final = "the URL has an @ after the host; quote / ? # @ in a password as %2F %3F %23 %40"
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
MIN_TOKEN_CHARS: Final = 16
_MADE_KEY_BYTES: Final = 32
# A user key is read again after this time, because a restored backup or a loss of data may change it.
_FRESH_S: Final = 10.0


class SettingGroup(Struct, frozen=True):
    """Keys of one table that belong together.

    Attributes:
        prefix: Their common part with the table before it: `gateway.tls_` of `tls_cert` and `tls_key` in `[gateway]`.
    """

    prefix: str

    @classmethod
    def from_table(cls, table: Struct, prefix: str) -> Self:
        """Read the keys of a table, which may lack one."""
        values = (getattr(table, f"{prefix.rpartition('.')[2]}{name}", None) for name in cls.__struct_fields__[1:])
        return cls(prefix, *values)

    @property
    def common(self) -> str:
        """The common part without the table."""
        return self.prefix.rpartition(".")[2]


class Secret(SettingGroup, frozen=True):
    """A secret that the keys `…env` and `…file` name: a variable that holds it, or a file."""

    env: str | None
    file: str | None

    @property
    def setting(self) -> str | None:
        """The key that is set, None without."""
        return next((f"{self.prefix}{name}" for name in ("env", "file") if getattr(self, name) is not None), None)

    def faults(self, *, is_needed: bool = False) -> Iterator[Fault]:
        """Check that at most one of the keys is set, or exactly one, and that no secret stands in place of a name."""
        keys = f"{self.common}env", f"{self.common}file"
        if self.env is not None and _VARIABLE_NAME.fullmatch(self.env) is None:
            example = re.sub(r"\W", "_", self.prefix.rstrip("._").rpartition(".")[2]).upper()
            fix = f"give the name of the variable that holds the secret, as {example}, never the secret"
            yield Fault(f"{self.prefix}env", fix, code="secret-in-file")
        if is_needed and (self.env is None) == (self.file is None):
            table = self.prefix.rpartition(".")[0]
            yield Fault(table, f"set {' or '.join(keys)}, one of them", code="missing-key")
        elif self.env is not None and self.file is not None:
            yield Fault(f"{self.prefix}file", f"goes in place of {keys[0]}", "take one of them out", "conflict")

    def read(self, environment: Mapping[str, str]) -> str | None:
        """Read the variable, or the file without the line break at its end; None if neither is named."""
        if self.env is not None:
            key, where, secret = f"{self.prefix}env", f"the variable {self.env}", environment.get(self.env, "")
        elif self.file is not None:
            key, where = f"{self.prefix}file", self.file
            try:
                secret = Path(where).read_text(encoding="utf-8").rstrip("\r\n")
            except OSError as error:
                raise SettingsError(Fault(key, f"{where} cannot be read ({error.strerror})")) from None
            except UnicodeDecodeError:
                raise SettingsError(Fault(key, f"{where} is not UTF-8")) from None
        else:
            return None
        if not secret.strip():
            raise SettingsError(Fault(key, f"{where} is empty", "put the secret there"))
        return secret

    def token(self, environment: Mapping[str, str], least_chars: int = 1) -> str | None:
        """Read a bearer token; ``SettingsError`` if it is absent, too short, or nothing that a header can hold."""
        token = self.read(environment)
        if token is not None and (len(token) < least_chars or not token.isascii() or any(map(str.isspace, token))):
            least = f"at least {least_chars} " if least_chars > 1 else ""
            fix = "make one at random"
            raise SettingsError(Fault(self.prefix.rstrip("_"), f"must be {least}ASCII characters without blanks", fix))
        return token


class Tls(SettingGroup, frozen=True):
    """A certificate and its private key (PEM) by which a server of ours is reached, or neither."""

    cert: str | None
    key: str | None

    def faults(self) -> Iterator[Fault]:
        """Check that both are named, or neither."""
        if (self.cert is None) != (self.key is None):
            here = f"{self.prefix}{'key' if self.cert is None else 'cert'}"
            yield Fault(here, f"{self.common}cert and {self.common}key go together", "set both", "conflict")

    def context(self) -> ssl.SSLContext | None:
        """Load certificate and key, or raise ``SettingsError``; None if nothing is served over TLS."""
        if self.cert is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        files = self.cert, self.key
        try:
            # A key with a passphrase is refused, because OpenSSL would ask for it on the terminal.
            context.load_cert_chain(*files, password=b"")
        except ssl.SSLError as error:
            what = f"certificate and key cannot be used ({error.reason}); {files[0]} and {files[1]} must be PEM, "
            what += "the key without a passphrase and of this certificate"
            raise SettingsError(fault_of(f"{self.prefix}cert", what)) from None
        except OSError as error:
            what = f"certificate or key cannot be read ({error.strerror}): {files[0]}, {files[1]}"
            raise SettingsError(fault_of(f"{self.prefix}cert", what)) from None
        return context


class Listen(SettingGroup, frozen=True):
    """The address of a server of ours; port 0 is any free one."""

    host: str
    port: int

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in LOOPBACK

    def open(self, backlog: int) -> socket.socket:
        """Open the port; ``SettingsError`` if the address cannot be used."""
        try:
            kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
            family, *_, where = socket.getaddrinfo(self.host, self.port, type=kind, flags=flags)[0]
            return socket.create_server(where[:2], family=family, backlog=backlog)
        except OSError as error:
            # Python adds the address in brackets.
            cause = str(error.strerror).partition(" (")[0]
            is_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            fix = "host" if is_host else "port, or 0 for any free one"
            what = f"{self.host}:{self.port} cannot be used ({cause})"
            raise SettingsError(Fault(f"{self.prefix}port", what, f"set another {self.prefix}{fix}")) from error

    def url(self, listener: socket.socket, *, is_tls: bool) -> str:
        """Return the address at which a server with an open port is reached."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if is_tls else 'http'}://{host}:{listener.getsockname()[1]}"


def hashed_user(user_id: str | None, key: str) -> str | None:
    """Hash the id of an end user; return None for None."""
    if user_id is None:
        return None
    return hashlib.blake2b(user_id.encode("utf-8", "surrogatepass"), key=key.encode(), digest_size=8).hexdigest()


def configured_user_key(settings: Settings) -> str | None:
    """Return the key of the settings, or of the file they name; None if neither is set."""
    if settings.user_key_file is None:
        return settings.user_key
    path = Path(settings.user_key_file)
    key = read_text(path, "give the path of a file that holds the key", "user_key_file").strip()
    if not 0 < len(key.encode()) <= MAX_KEY_BYTES:
        what = f"{path}: must hold a key of 1 to {MAX_KEY_BYTES} bytes; write one and nothing else into it"
        raise SettingsError(fault_of("user_key_file", what))
    return key


class UserKeys:
    """The keys of one installation that hash ids of end users. Safe to share between threads."""

    def __init__(self, settings: Settings, store: "Store") -> None:
        self._store = store
        self._name = store.keys.user_key
        self._configured = configured_user_key(settings)
        self._former = settings.user_keys_former
        self._made: str | None = None
        self._fresh_until = 0.0

    @property
    def known(self) -> str | None:
        """The key, if Redis need not be read for it."""
        if self._configured is not None:
            return self._configured
        return self._made if time.monotonic() < self._fresh_until else None

    def current(self) -> str:
        """Return the key; without a configured one read it from Redis, or make it there."""
        if (key_in_use := self.known) is not None:
            return key_in_use
        try:
            key = self._kept()
        except ReportedError:
            # The first partition is away, and others are judged on.
            if self._made is None:
                raise
            return self._made
        if key is None:
            # After a loss of its data Redis gets the key in use; workers with different keys agree on the first stored.
            made = self._made or secrets.token_hex(_MADE_KEY_BYTES)
            self._store.call(lambda client: client.set(self._name, made, nx=True))
            key = self._kept() or made
        self._made, self._fresh_until = key, time.monotonic() + _FRESH_S
        return key

    def all(self) -> tuple[str, ...]:
        """List every key under which verdicts may have been written: configured, made and former ones."""
        keys = (self._configured, self._kept(), *self._former)
        return tuple(key for key in keys if key is not None)

    def _kept(self) -> str | None:
        kept = self._store.call(lambda client: client.get(self._name))
        return kept.decode() if kept else None
