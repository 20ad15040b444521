"""The built-in set: what it must find, what it must leave alone, and that no text makes it slow or deaf."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lookalikes import table

from tracejudge.content import redact
from tracejudge.content.redact import redact_secrets, without_possessive

# Secrets are put together here, so that no scanner of repositories takes those of the table for live ones.
MIXED = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1eF3hJ5kL7nP9rS1uV3xY5"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA" + MIXED + "\n" + MIXED + "=\n-----END RSA PRIVATE KEY-----"
PARTS = {
    "MIXED": MIXED,
    "HEX": "0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "JWT": "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0." + "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "PEM": PEM,
    "ESCAPED": PEM.replace("\n", "\\n"),
}


def whole(text: str) -> str:
    """Put parts in place of `<NAME>`, their first characters in place of `<NAME:number>`, and nothing for `<>`."""
    names = "|".join(PARTS)
    return re.sub(
        rf"<({names})(?::(\d+))?>", lambda found: PARTS[found[1]][: int(found[2] or 10**9)], text.replace("<>", "")
    )


def rows(kind: str) -> Iterator[Any]:
    for name, text, *expected in table("redaction")[kind]:
        yield name, whole(text), *expected


def assert_redacted(cases: dict[str, tuple[str, str]], function: Callable[[str], str] = redact_secrets) -> None:
    results = {name: function(text) for name, (text, _) in cases.items()}
    assert {name: text for name, text in results.items() if text != cases[name][1]} == {}


def test_finds_a_secret_wherever_it_stands_and_leaves_what_stands_around_it() -> None:
    for around in ("{}", "It is {}, she said.", 'f("{}")', "a={}\nb=1", "(ünicode: {})"):
        assert_redacted({name: (around.format(text), around.format(sign)) for name, text, sign in rows("issued")})
    surrounded = {name: (text, expected) for name, text, expected in rows("surrounded")}
    assert_redacted(surrounded)
    assert_redacted(surrounded, lambda text: redact_secrets(redact_secrets(text)))
    assert redact_secrets("\ud800 ann@example.org") == "\ud800 [redacted e-mail]", "a text that is no Unicode"


def test_leaves_alone_what_only_looks_like_a_secret() -> None:
    for around in ("{0}", "({0}) {0}, {0}"):
        assert_redacted({name: (around.format(text), around.format(text)) for name, text in rows("innocent")})


@pytest.mark.timeout(120)
def test_a_hostile_text_takes_no_longer_than_its_length_and_hides_nothing_behind_it() -> None:
    """Ten times: what is quadratic takes minutes here, what is linear a second at most."""
    for name, text in rows("hostile"):
        redacted = redact_secrets(f"{text * 10}\n-----END PRIVATE KEY-----\n ann@example.org 4111111111111111")
        assert redacted.endswith("[redacted e-mail] [redacted card number]"), name


def test_a_secret_in_json_that_stands_in_a_text_is_found_and_the_json_stays_json() -> None:
    for name, text, secret in rows("in JSON"):
        redacted = redact_secrets(text)
        assert secret not in redacted, name
        json.loads(redacted)
    assert json.loads(redact_secrets(r'{"note": "a\nbob@example.com"}')) == {"note": "a\n[redacted e-mail]"}


def test_the_patterns_without_possessive_quantifiers_find_the_same() -> None:
    """Python 3.10 has no possessive quantifiers."""
    # The patterns are no part of what the module offers.
    patterns = [form.pattern for form in (*redact._SURROUNDED, *redact._ISSUED)]
    patterns += [value for value in vars(redact).values() if isinstance(value, re.Pattern)]
    changed = {pattern: re.compile(without_possessive(pattern.pattern)) for pattern in patterns}
    assert sum(pattern.pattern != plain.pattern for pattern, plain in changed.items()) > 10
    texts = [row[1] for kind in ("issued", "surrounded", "innocent", "hostile") for row in rows(kind)]
    for text in (text for text in texts if len(text) < 10_000):
        for pattern, plain in changed.items():
            if pattern is not redact._POSSESSIVE:
                assert pattern.sub("#", text) == plain.sub("#", text), (pattern.pattern, text)
    assert not any(re.search(r"[*+?}]\+", re.sub(r"\[[^\]]*\]", "", plain.pattern)) for plain in changed.values())
