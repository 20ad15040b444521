"""Who may read the metrics page: nobody is asked, or a bearer token, or a user and a password; and TLS."""

import base64
import hmac
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from worker.settings import Settings, SettingsError

__all__ = ["Access", "Fault", "access_fault", "tls_context"]

_REALM: Final = 'realm="tracejudge"'


class Fault(NamedTuple):
    """A setting that does not go with the others, and what to do about it."""

    key: str
    mend: str


def access_fault(settings: Settings) -> Fault | None:
    """Find what is wrong with the settings of the metrics page in relation to each other."""
    token = _given(settings, "metrics_token_env", "metrics_token_file")
    password = _given(settings, "metrics_password_env", "metrics_password_file")
    return _doubled(token) or _doubled(password) or _mixed(settings, token, password) or _tls_fault(settings)


def _given(settings: Settings, *keys: str) -> list[str]:
    return [key for key in keys if getattr(settings, key) is not None]


def _doubled(secret: list[str]) -> Fault | None:
    return Fault(secret[1], f"goes in place of {secret[0]}; take one of them out") if len(secret) > 1 else None


def _mixed(settings: Settings, token: list[str], password: list[str]) -> Fault | None:
    user = settings.metrics_user
    if token and (password or user is not None):
        return Fault(token[0], "goes in place of metrics_user and its password; take one or the other out")
    if password and user is None:
        return Fault(password[0], "goes with metrics_user; set that too")
    if user is not None and not password:
        return Fault("metrics_user", "goes with metrics_password_env or metrics_password_file; set one of them")
    if user is not None and (not user.isprintable() or ":" in user):
        return Fault("metrics_user", "may hold no colon and no line break")
    return None


def _tls_fault(settings: Settings) -> Fault | None:
    given = _given(settings, "metrics_tls_cert", "metrics_tls_key")
    return Fault(given[0], "metrics_tls_cert and metrics_tls_key go together; set both") if len(given) == 1 else None


class Access:
    """The one credential that opens the page, if it is closed at all. Shows nothing of it when printed."""

    def __init__(self, scheme: str | None = None, credential: str = "") -> None:
        """Ask for a credential under a scheme of HTTP, ``Bearer`` or ``Basic``; without one the page is open."""
        self.scheme = scheme
        self._credential = credential.encode()

    @classmethod
    def of(cls, settings: Settings, environment: Mapping[str, str]) -> "Access":
        """Take the credential from the variable or file that the settings name.

        Raises:
            SettingsError: It is not there, or no HTTP header could hold it.
        """
        token = _secret("metrics_token", settings.metrics_token_env, settings.metrics_token_file, environment)
        if token is not None:
            if not token.isascii() or any(sign.isspace() for sign in token):
                raise SettingsError("metrics_token: holds a blank or a sign beyond ASCII; no bearer token may")
            return cls("Bearer", token)
        if settings.metrics_user is None:
            return cls()
        password = _secret(
            "metrics_password", settings.metrics_password_env, settings.metrics_password_file, environment
        )
        return cls("Basic", base64.b64encode(f"{settings.metrics_user}:{password}".encode()).decode())

    @property
    def challenge(self) -> str | None:
        """What `WWW-Authenticate` says to who has not shown the credential; nothing where the page is open."""
        if self.scheme is None:
            return None
        return f'{self.scheme} {_REALM}, charset="UTF-8"' if self.scheme == "Basic" else f"{self.scheme} {_REALM}"

    def admits(self, authorization: str | None) -> bool:
        """Tell whether a header opens the page, in a time that does not depend on how much of it is right."""
        if self.scheme is None:
            return True
        scheme, _, credential = (authorization or "").strip().partition(" ")
        # http.server reads headers as Latin-1.
        shown = credential.strip().encode("latin-1", "replace")
        return hmac.compare_digest(shown, self._credential) and scheme.lower() == self.scheme.lower()


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Load certificate and key; nothing where the page is served without TLS.

    Raises:
        SettingsError: They cannot be read or do not belong together.
    """
    if settings.metrics_tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key under a passphrase is refused: OpenSSL would ask for it on the terminal.
        context.load_cert_chain(settings.metrics_tls_cert, settings.metrics_tls_key, password=b"")
    except ssl.SSLError as error:
        mend = "both must be PEM, the key without a passphrase and of this certificate"
        raise SettingsError(f"metrics_tls_cert: certificate and key do not serve ({error.reason}); {mend}") from None
    except OSError as error:
        raise SettingsError(f"metrics_tls_cert: certificate or key cannot be read ({error.strerror})") from None
    return context


def _secret(key: str, variable: str | None, path: str | None, environment: Mapping[str, str]) -> str | None:
    """Read a secret from a variable, or from a file without the line break at its end."""
    if variable is not None:
        secret, where = environment.get(variable, ""), f"{key}_env: the variable {variable}"
    elif path is not None:
        secret, where = _read(f"{key}_file", path).rstrip("\r\n"), f"{key}_file: {path}"
    else:
        return None
    if not secret.strip():
        raise SettingsError(f"{where} holds nothing; put the secret there")
    return secret


def _read(key: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{key}: {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{key}: {path} is not UTF-8") from None
