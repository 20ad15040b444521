"""What a text must not carry further: the built-in set, and the use of a host's own functions.

The set looks for what has a form of its own: keys and tokens of well-known providers, private keys, passwords in
URLs, e-mail addresses, card numbers and IBANs. A form alone decides where it is rare (`ghp_...`), a checksum where
it is not (card numbers, IBANs). Names, postal addresses, phone numbers and passwords in prose have no form and are
not found. Each find is replaced by a fixed sign that says what stood there.

Every pattern is linear in the length of the text: repeats are possessive or bounded, and begin only where a word
begins. They are tried only where the text holds the few characters they cannot do without.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from tracejudge.checksums import redact_numbers
from tracejudge.credentials import is_secret_name, redact_credentials
from tracejudge.errors import RedactionError
from tracejudge.texts import change_texts

__all__ = ["redact_record", "redact_secrets"]

_EMAIL_SIGN: Final = "[redacted e-mail]"
_SECRET_SIGN: Final = "[redacted secret]"  # noqa: S105 - a sign, no secret
_MIN_CHARS: Final = 6  # a@b.io
_MAX_LOCAL_CHARS: Final = 64
_LOCAL: Final = re.compile(r"[\w.+%'-]++\Z")
_LOCAL_EDGE: Final = ".'%-"
_DOMAIN: Final = re.compile(
    r"(?!\d{1,3}x\.)"  # icon@2x.png
    r"(?:[^\W_][\w-]{0,62}+\.){1,8}(?:xn--[a-z0-9-]{2,59}+|[^\W\d_]{2,63})(?!\w)"
)


def redact_secrets(text: str) -> str:
    """Replace secrets and personal data that have a form of their own; give back the same text where there are none."""
    if len(text) < _MIN_CHARS:
        return text
    encoded = text.encode("utf-8", "surrogatepass")
    text = redact_credentials(text, encoded)
    if "@" in text:
        text = _redact_emails(text)
    return redact_numbers(text, encoded)


def redact_record(record: dict[str, Any], functions: Sequence[Callable[[str], str]]) -> None:
    """Put every text of a record that may be content through functions, one after the other, in place.

    With the built-in set among them, a text under a key that names a secret, as `{"password": ...}`, goes too.

    Raises:
        RedactionError: A function raised, or gave something else than a text. It names the kind of the error only.
    """

    def change(text: str) -> str:
        for function in functions:
            text = _apply(function, text)
        return text

    def change_pair(key: str, text: str) -> str:
        return _SECRET_SIGN if text and is_secret_name(key) else change(text)

    change_texts(record, change, change_pair if redact_secrets in functions else None)


def _apply(function: Callable[[str], str], text: str) -> str:
    try:
        redacted: object = function(text)
    except BaseException as error:  # noqa: BLE001 - the host's function may fail in any way, exits included
        # Not chained: the host's error may quote the text.
        raise RedactionError(f"redact raised {type(error).__name__}") from None
    if type(redacted) is not str:
        raise RedactionError("redact gave no text")
    return redacted


def _redact_emails(text: str) -> str:
    """Look around each `@`, a bounded way back and forth."""
    parts: list[str] = []
    done = 0
    at = text.find("@")
    while at >= 0:
        domain = _DOMAIN.match(text, at + 1)
        local = _LOCAL.search(text, max(done, at - _MAX_LOCAL_CHARS), at) if domain else None
        if domain and local and local[0].strip(_LOCAL_EDGE):
            start = at - len(local[0].lstrip(_LOCAL_EDGE))
            # The letter of an escape, as in JSON that stands in a text, is no part of the address.
            start += text[max(0, start - 1) : start] == "\\" and text[start] in "nrtbf" and start + 1 < at
            parts += (text[done:start], _EMAIL_SIGN)
            done = domain.end()
        at = text.find("@", max(at + 1, done))
    parts.append(text[done:])
    return "".join(parts)
