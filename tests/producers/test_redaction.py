"""The built-in set: what it must find, what it must leave alone, and that no text makes it slow or deaf."""

import json
import re
from typing import Any

import pytest
from support.cases import each_case

from tracejudge.content import redact
from tracejudge.content.redact import redact_secrets, without_possessive

# Written in two halves so that no scanner of repositories takes these for live secrets.
MIXED = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1eF3hJ5kL7nP9rS1uV3xY5"
HEX = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
JWT = "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0." + "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA" + MIXED + "\n" + MIXED + "=\n-----END RSA PRIVATE KEY-----"
KEY, TOKEN = "[redacted key]", "[redacted token]"
EMAIL, CARD, IBAN = "[redacted e-mail]", "[redacted card number]", "[redacted IBAN]"

ISSUED = {
    "OpenAI": ("sk-" + MIXED[:48], KEY),
    "OpenAI project": ("sk-proj-" + MIXED + "-_" + MIXED, KEY),
    "OpenAI service account": ("sk-svcacct-" + MIXED, KEY),
    "Anthropic": ("sk-ant-" + "api03-" + MIXED + "-AA", KEY),
    "OpenRouter": ("sk-or-" + "v1-" + HEX * 2, KEY),
    "DeepSeek": ("sk-" + HEX, KEY),
    "Google": ("AIza" + "SyA-" + MIXED[:31], KEY),
    "Google OAuth": ("ya29." + "a0AfH6SM" + MIXED, TOKEN),
    "Google client secret": ("GOCSPX-" + MIXED[:28], TOKEN),
    "Hugging Face": ("hf_" + MIXED[:34], KEY),
    "Groq": ("gsk_" + MIXED, KEY),
    "AWS": ("AKIA" + "IOSFODNN7EXAMPLE", KEY),
    "AWS, for a session": ("ASIA" + "Y34FZKBOKMUTVV7A", KEY),
    "AWS without a digit": ("AKIA" + "QWERTZUIOPASDFGH", KEY),
    "GitHub": ("ghp_" + MIXED[:36], TOKEN),
    "GitHub OAuth": ("gho_" + MIXED[:36], TOKEN),
    "GitHub app": ("ghs_" + MIXED[:36], TOKEN),
    "GitHub, fine-grained": ("github_pat_" + MIXED[:22] + "_" + MIXED, TOKEN),
    "GitLab": ("glpat-" + MIXED[:20], TOKEN),
    "Slack bot": ("xoxb-" + "123456789012-1234567890123-" + MIXED[:24], TOKEN),
    "Slack user": ("xoxp-" + "123456789012-" + MIXED[:24], TOKEN),
    "Stripe": ("sk_live_" + MIXED[:24], KEY),
    "Stripe, restricted": ("rk_live_" + MIXED[:24], KEY),
    "npm": ("npm_" + MIXED[:36], TOKEN),
    "PyPI": ("pypi-Ag" + "EIcHlwaS5vcmc" + MIXED * 2, TOKEN),
    "SendGrid": ("SG." + MIXED[:22] + "." + MIXED[:43], KEY),
    "JWT": (JWT, TOKEN),
    "e-mail": ("ann.lee@example.org", EMAIL),
    "e-mail with a tag": ("ann+shop@mail.example.co.uk", EMAIL),
    "e-mail with an accent": ("josé@example.es", EMAIL),
    "e-mail of an internationalised domain": ("ann@xn--bcher-kva.xn--p1ai", EMAIL),
    "Visa": ("4111111111111111", CARD),
    "Visa of 13 digits": ("4222222222222", CARD),
    "Visa in blanks": ("4111 1111 1111 1111", CARD),
    "Visa in dashes": ("4012-8888-8888-1881", CARD),
    "Mastercard": ("5555 5555 5555 4444", CARD),
    "Mastercard of the second series": ("2223003122003222", CARD),
    "American Express": ("378282246310005", CARD),
    "American Express in blanks": ("3714 496353 98431", CARD),
    "Diners": ("3056 930902 5904", CARD),
    "Discover": ("6011111111111117", CARD),
    "JCB": ("3530111333300000", CARD),
    "UnionPay of 19 digits": ("6205500000000000004", CARD),
    "IBAN, German": ("DE89370400440532013000", IBAN),
    "IBAN in groups": ("DE89 3704 0044 0532 0130 00", IBAN),
    "IBAN, British": ("GB29 NWBK 6016 1331 9268 19", IBAN),
    "IBAN, Norwegian": ("NO9386011117947", IBAN),
    "IBAN, Maltese": ("MT84MALT011000012345MTLCAST001S", IBAN),
    "IBAN in small letters": ("fr1420041010050500013m02606", IBAN),
    "private key": (PEM, "[redacted private key]"),
}

SURROUNDED = {
    "bearer": ("Authorization: Bearer abc.def-123", f"Authorization: Bearer {TOKEN}"),
    "bearer in JSON": ('{"authorization": "bearer s3cr3tvalue"}', f'{{"authorization": "bearer {TOKEN}"}}'),
    "bearer alone": (f"curl -H 'Bearer {HEX}'", f"curl -H 'Bearer {TOKEN}'"),
    "basic": ("authorization: Basic dXNlcjpwYXNz", f"authorization: Basic {TOKEN}"),
    "AWS secret": (
        "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        f"aws_secret_access_key = {KEY}",
    ),
    "AWS secret in JSON in JSON": (
        '{\\"SecretAccessKey\\": \\"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\\"}',
        f'{{\\"SecretAccessKey\\": \\"{KEY}\\"}}',
    ),
    "Azure header": (f"api-key: {HEX}", f"api-key: {KEY}"),
    "password in a URL": ("redis://:hunter2@cache:6379/0", "redis://:[redacted password]@cache:6379/0"),
    "password and user in a URL": (
        "postgres://app:p@ss@db.example/x",
        "postgres://app:[redacted password]@db.example/x",
    ),
    "Slack hook": (
        "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
        f"https://hooks.slack.com/services/{TOKEN}",
    ),
    "cut private key": (PEM[:100], "[redacted private key]"),
    "private key with its lines escaped": (PEM.replace("\n", "\\n"), "[redacted private key]"),
    "two on a line": ("from a@example.org to b@example.org", f"from {EMAIL} to {EMAIL}"),
    "e-mail in angle brackets": ("Ann <ann@example.org>.", f"Ann <{EMAIL}>."),
    "e-mail in a query": ("https://example.org/?to=ann@example.org&x=1", f"https://example.org/?to={EMAIL}&x=1"),
    "chain of e-mails": ("a@b.co@c.de", f"{EMAIL}@c.de"),
    "card before its code": ("4111 1111 1111 1111 123", f"{CARD} 123"),
    "card before its date": ("4111 1111 1111 1111 12/27", f"{CARD} 12/27"),
    "card behind a number": ("no 1234 4111 1111 1111 1111", f"no 1234 {CARD}"),
    "card in a table": ("7,4111111111111111,12/27", f"7,{CARD},12/27"),
    "card and IBAN": ("4111111111111111 or NO93 8601 1117 947", f"{CARD} or {IBAN}"),
    "IBAN before a word": ("DE89370400440532013000 BIC", f"{IBAN} BIC"),
    "key in an assignment": ("KEY=sk-" + MIXED + ";", f"KEY={KEY};"),
}

INNOCENT = {
    "prose": "The task-force met; risk-averse people left early.",
    "order number": "order 4711-2024-000815",
    "order number with a wrong check digit": "4111111111111112",
    "long order number": "1234567890123456",
    "number of an issuer nobody is": "9999999999999995",
    "all the same digit": "0000000000000000",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "uuid of digits": "41111111-1111-4111-8111-111111111111",
    "trace id": "0af7651916cd43dd8448eb211c80319c",
    "sha-1": "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "sha-256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "git range": "4111111..1111111",
    "time in seconds": "1700000000",
    "time in milliseconds": "1700000000000",
    "time in microseconds": "1700000000000000",
    "time in nanoseconds": "1700000000000000000",
    "time in words": "2024-05-01T12:34:56.123456Z",
    "time without dashes": "20240501123456789",
    "phone": "+49 170 1234567",
    "phone of 15 digits": "+431234567890123",
    "decimal of a card's digits": "0.4111111111111111",
    "digits inside a word": "x4111111111111111",
    "digits before a word": "4111111111111111px",
    "address in a network": "192.168.100.200:6379",
    "version": "lodash@4.17.21",
    "scoped package": "@types/node",
    "handle": "thanks @ann.lee",
    "host without a dot": "root@localhost",
    "image": "icon@2x.png",
    "decorator": "@app.route",
    "URL with a port": "http://example.org:8080/a",
    "URL with a user": "ssh://git@host/repo",
    "URL with an at sign": "https://example.org:8080/@ann",
    "library": "scikit-learn and sk-learn-compatible-estimators",
    "prefix alone": "keys begin with sk-, ghp_ or AKIA",
    "short token": "sk-12345",
    "publishable key": "pk_test_TYooMQauvdEDq54NiTphI7jx",
    "name of a variable": "api_key = os.environ['OPENAI_API_KEY']",
    "key of a table": "primary key: customer_identifier_of_the_shop",
    "bearer in prose": "the bearer of this letter",
    "bearer of shares": "Bearer certificates-of-deposit",
    "public key": "-----BEGIN PUBLIC KEY-----\nMFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBAK\n-----END PUBLIC KEY-----",
    "header of a private key": "a file that begins with -----BEGIN PRIVATE KEY-----",
    "IBAN with wrong check digits": "DE88370400440532013000",
    "IBAN too short": "DE8937040044053201300",
    "IBAN of no country": "ZZ89370400440532013000",
    "half a JWT": "eyJhbGciOiJIUzI1NiJ9",
    "base64": "TWFuIGlzIGRpc3Rpbmd1aXNoZWQsIG5vdCBvbmx5IGJ5IGhpcyByZWFzb24=",
    "article number": "EAN 4006381333931",
    "isbn": "978-3-16-148410-0",
    "matrix": "12 53 88 41 11 11 11 11 11 11 11",
    "sign of ours": "[redacted e-mail] [redacted card number] [redacted key]",
}

HOSTILE = {
    "one letter": "a" * 100_000,
    "one digit": "4" * 100_000,
    "blanks": " " * 100_000,
    "at signs": "a@" * 50_000,
    "domains": "@" + "a." * 50_000,
    "addresses without end": "a.aa@" * 20_000,
    "groups of digits": "4444 " * 20_000,
    "beginnings of IBANs": "DE89 " * 20_000,
    "beginnings of JWTs": "eyJaaaaaa." * 10_000,
    "beginnings of private keys": "-----BEGIN PRIVATE KEY-----" * 3_700,
    "private key without end": PEM[:80] + "-" * 100_000,
    "beginnings of URLs": "://a:" * 20_000,
    "names without values": "aws_secret_access_key=" * 4_500,
    "bearers": "authorization: bearer " * 4_500,
    "blanks after bearer": "bearer" + " " * 100_000,
    "beginnings of keys": " sk-aaaaaaaaaaaaaaaa" * 5_000,
}


@each_case(("secret", "sign"), ISSUED.values(), ids=ISSUED)
@each_case("around", ["{}", "It is {}, she said.", 'f("{}")', "a={}\nb=1", "(ünicode: {})"])
def test_finds_a_secret_wherever_it_stands(secret: str, sign: str, around: str) -> None:
    assert redact_secrets(around.format(secret)) == around.format(sign)


@each_case(("text", "expected"), SURROUNDED.values(), ids=SURROUNDED)
def test_leaves_what_stands_around_a_secret(text: str, expected: str) -> None:
    assert redact_secrets(text) == expected


@each_case("text", INNOCENT.values(), ids=INNOCENT)
def test_leaves_alone_what_only_looks_like_a_secret(text: str) -> None:
    assert redact_secrets(text) == text
    assert redact_secrets(f"({text}) {text}, {text}") == f"({text}) {text}, {text}"


@each_case(("text", "expected"), SURROUNDED.values(), ids=SURROUNDED)
def test_finds_nothing_in_what_it_gave(text: str, expected: str) -> None:
    assert redact_secrets(redact_secrets(text)) == expected


@pytest.mark.timeout(60)
@each_case("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_text_takes_no_longer_than_its_length_and_hides_nothing_behind_it(text: str) -> None:
    # Ten times: what is quadratic takes minutes here, what is linear a second at most.
    redacted = redact_secrets(f"{text * 10}\n-----END PRIVATE KEY-----\n ann@example.org 4111111111111111")
    assert redacted.endswith(f"{EMAIL} {CARD}")


def test_a_text_that_is_no_unicode_is_searched_all_the_same() -> None:
    assert redact_secrets("\ud800 ann@example.org") == f"\ud800 {EMAIL}"


ESCAPED = {
    "card": (r'{"note": "a\n4111111111111111 b"}', "4111111111111111"),
    "IBAN": (r'{"note": "a\nDE89370400440532013000"}', "DE89370400440532013000"),
    "key": (r'{"note": "a\nsk-proj-abcdefghij0123456789abcd"}', "sk-proj-abcdefghij"),
    "password of a key in a text": ('{"user": "bo", "password": "hunter2"}', "hunter2"),
    "password of a key in a text within a text": (r'"{\"api_key\": \"hunter2\"}"', "hunter2"),
}


@each_case(("text", "secret"), ESCAPED.values(), ids=ESCAPED)
def test_a_secret_in_json_that_stands_in_a_text_is_found_and_the_json_stays_json(text: str, secret: str) -> None:
    redacted = redact_secrets(text)
    assert secret not in redacted
    json.loads(redacted)


def test_an_address_behind_an_escape_leaves_the_escape() -> None:
    assert json.loads(redact_secrets(r'{"note": "a\nbob@example.com"}')) == {"note": "a\n[redacted e-mail]"}


def test_the_patterns_without_possessive_quantifiers_find_the_same() -> None:
    """Python 3.10 has no possessive quantifiers."""
    patterns = [form.pattern for form in (*redact._SURROUNDED, *redact._ISSUED)]
    patterns += [value for value in vars(redact).values() if isinstance(value, re.Pattern)]
    changed = {pattern: re.compile(without_possessive(pattern.pattern)) for pattern in patterns}
    assert sum(pattern.pattern != plain.pattern for pattern, plain in changed.items()) > 10
    values: list[Any] = [*ISSUED.values(), *SURROUNDED.values(), *INNOCENT.values(), *HOSTILE.values()]
    texts = [
        text for value in values for text in ((value,) if isinstance(value, str) else value[:1]) if len(text) < 10_000
    ]
    for text in texts:
        for pattern, plain in changed.items():
            if pattern is not redact._POSSESSIVE:
                substituted, again = pattern.sub("#", text), plain.sub("#", text)
                assert substituted == again, (pattern.pattern, text)
    assert not any(re.search(r"[*+?}]\+", re.sub(r"\[[^\]]*\]", "", plain.pattern)) for plain in changed.values())
