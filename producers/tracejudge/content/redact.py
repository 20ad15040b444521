"""Redaction of secrets and personal data by the built-in set, and by functions of the host.

The set finds values with a fixed form: keys and tokens of well-known providers, private keys, passwords in URLs,
e-mail addresses, card numbers and IBANs. A rare form is enough (`ghp_...`); a common one needs a valid checksum (card
numbers, IBANs). Names, postal addresses, phone numbers and passwords in prose have no form and are not found. Each
find is replaced by a fixed mark that says what it was.

Every pattern is linear in the length of the text: repeats are possessive or bounded, and begin only at the start of a
word. A pattern is tried only if the text contains the few characters that all its matches contain.
"""

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tracejudge.content.truncate import map_texts
from tracejudge.log import RedactionError

# Python 3.10 lacks possessive quantifiers. They only save time here: what follows each cannot match what it took.
_POSSESSIVE: Final = re.compile(r"(?<!\\)([*+?}])\+")


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern if sys.version_info >= (3, 11) else without_possessive(pattern))


def without_possessive(pattern: str) -> str:
    """Return a pattern with greedy quantifiers in place of possessive ones."""
    return _POSSESSIVE.sub(r"\1", pattern)


# The start of a word, or the end of an escape, as in JSON inside a text.
_START: Final = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrtbf]))"
_WORD: Final = "[A-Za-z0-9]"
_LINE: Final = "[A-Za-z0-9_-]"
_DIGIT_SOON: Final = r"(?=[A-Za-z._~+/=-]{0,64}[0-9])"
_KEY: Final = "[redacted key]"
_TOKEN: Final = "[redacted token]"  # noqa: S105 - a mark, no token


class _Form(NamedTuple):
    """One form of a secret; the pattern is tried only if one of the triggers occurs, which costs next to nothing."""

    triggers: tuple[str, ...]
    pattern: re.Pattern[str]
    replacement: str


def _named(trigger: str, name: str, value: str) -> _Form:
    """Make the form of a value known by its name: `name = value`, in code, JSON, YAML or a header."""
    between = r"""[\\"']{0,2}\s{0,3}(?:=>|:=|[:=])\s{0,3}[\\"']{0,2}"""
    return _Form((trigger,), _compiled(f"(?i)({name}{between}){value}"), rf"\1{_KEY}")


def _issued(prefixes: str, rest: str, sign: str = _KEY) -> _Form:
    """Make the form of a secret that begins with one of some prefixes, separated by blanks, at the start of a word."""
    triggers = tuple(prefixes.split())
    start = "|".join(map(re.escape, triggers))
    return _Form(triggers, _compiled(f"{_START}(?:{start}){rest}"), sign)


# Forms known by their surroundings; private keys first, whose text may contain anything. Triggers in lower case.
_SURROUNDED: Final = (
    _Form(
        ("-----begin ",),
        _compiled(
            r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----(?=[\s\S]{0,300}?[A-Za-z0-9+/]{24})"
            r"[^-]*+(?:-(?!----END )[^-]*+)*+(?:-----END [A-Z0-9 ]{1,60}-----)?"
        ),
        "[redacted private key]",
    ),
    _Form(("://",), _compiled(r"""(://[^\s/:@?#"'<>]{0,128}:)[^\s/"'<>,]{1,256}@"""), r"\1[redacted password]@"),
    _Form(
        ("hooks.slack.com/",),
        _compiled(r"(hooks\.slack\.com/(?:services|workflows)/)[A-Za-z0-9/_-]{20,}+"),
        rf"\1{_TOKEN}",
    ),
    _Form(
        ("authorization",),
        _compiled(
            r"""(?i)(authorization[\\"']{0,2}\s{0,3}[:=]\s{0,3}[\\"']{0,2}(?:bearer|basic|token|bot)\s{1,3})"""
            r"[A-Za-z0-9._~+/=-]{6,}+"
        ),
        rf"\1{_TOKEN}",
    ),
    _Form(
        ("bearer",),
        _compiled(rf"(?i)((?<![a-z0-9])bearer\s{{1,3}}){_DIGIT_SOON}[A-Za-z0-9._~+/=-]{{16,}}+"),
        rf"\1{_TOKEN}",
    ),
    _named(
        "secret", r"(?:secret[_\- ]?(?:access[_\- ]?)?key|aws[_\- ]?secret)", r"[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"
    ),
    _Form(
        ('":',),
        _compiled(
            r"""(?i)(\\{0,2}"(?:[\w-]{0,40}[_-])?(?:pass(?:word|wd|phrase)|pwd|(?:client|app)[_-]?secret|secret"""
            r"""|api[_-]?key|(?:access|refresh|auth)[_-]?token)\\{0,2}"\s{0,3}:\s{0,3}\\{0,2}")[^"\\]{1,512}"""
        ),
        rf"\1{_KEY}",
    ),
    _named("key", r"(?:api|account|subscription)[_\- ]?key", rf"{_DIGIT_SOON}[A-Za-z0-9_+/-]{{24,}}+={{0,2}}"),
)
_ISSUED: Final = (
    _issued("eyJ", rf"{_LINE}{{5,}}+\.eyJ{_LINE}{{5,}}+\.{_LINE}*+", _TOKEN),
    # Models and what surrounds them.
    _issued("sk-ant- sk-proj- sk-svcacct- sk-admin- sk-or- sk-lf-", f"{_LINE}{{16,}}+"),
    _issued("sk-", f"{_DIGIT_SOON}{_WORD}{{20,}}+"),
    _issued("AIza", f"{_LINE}{{35}}(?!{_LINE})"),
    _issued("hf_ gsk_ r8_ fw_ pplx- xai- tvly- lsv2_pt_ lsv2_sk_", rf"{_DIGIT_SOON}\w{{28,}}+"),
    # Clouds, code, chat, mail, money.
    _issued("AKIA ASIA", f"[A-Z0-9]{{16}}(?!{_LINE})"),
    _issued("ya29. GOCSPX-", f"{_LINE}{{20,}}+", _TOKEN),
    _issued("ghp_ gho_ ghu_ ghs_ ghr_", f"{_WORD}{{30,}}+", _TOKEN),
    _issued("github_pat_", r"\w{22,}+", _TOKEN),
    _issued("glpat- gldt- glrt- glptt- glft- glcbt- glsoat-", r"[\w.-]{20,}+", _TOKEN),
    _issued("npm_", f"{_WORD}{{36}}(?!{_LINE})", _TOKEN),
    _issued("pypi-Ag", f"{_LINE}{{16,}}+", _TOKEN),
    _issued("xoxa- xoxb- xoxc- xoxd- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-", f"{_DIGIT_SOON}{_LINE}{{10,}}+", _TOKEN),
    _issued("sk_live_ sk_test_ rk_live_ rk_test_ whsec_", f"{_WORD}{{16,}}+"),
    _issued("dop_v1_ doo_v1_ shpat_ shpss_ dapi", f"[a-f0-9]{{32,}}+(?!{_LINE})", _TOKEN),
    _issued("SG.", rf"{_LINE}{{16,32}}\.{_LINE}{{32,64}}(?!{_LINE})"),
)
"""Found by what they begin with; each is one word of at least fifteen characters."""
_MIN_RUN: Final = 15
_RUN: Final = b"a" * _MIN_RUN
_RUN_CHARS: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_RUNS: Final = bytes(ord("a") if byte in _RUN_CHARS else ord(" ") for byte in range(256))
_SECRET_NAME: Final = _compiled(
    r"(?i)(?:.{0,40}[_\-. ])?"
    r"(?:pass(?:word|wd|phrase)|pwd|secret|secret[_\- ]?(?:access[_\- ]?)?key|(?:client|app)[_\- ]?secret|api[_\- ]?key"
    r"|(?:access|refresh|auth|bearer|id)[_\- ]?token|authorization|private[_\- ]?key|cvv|cvc)"
)
_CAMEL: Final = _compiled(r"(?<=[a-z])(?=[A-Z])")
_MAX_NAME_CHARS: Final = 64


def redact_credentials(text: str, encoded: bytes) -> str:
    """Replace keys, tokens, private keys and passwords in URLs; `encoded` is the text in UTF-8, searched faster."""
    lowered = encoded.lower()
    for triggers, pattern, replacement in _SURROUNDED:
        if triggers[0].encode() in lowered:
            text = pattern.sub(replacement, text)
    if _RUN in encoded.translate(_RUNS):
        long_words = " ".join([word for word in text.split() if len(word) >= _MIN_RUN])
        for triggers, pattern, replacement in _ISSUED:
            if any(trigger in long_words for trigger in triggers):
                text = pattern.sub(replacement, text)
    return text


def is_secret_name(key: str) -> bool:
    """Return whether a key names a secret, such as `password`, `clientSecret` or `x-api-key`."""
    return len(key) <= _MAX_NAME_CHARS and _SECRET_NAME.fullmatch(_CAMEL.sub("_", key)) is not None


# Not a part of a longer number, a decimal, a word or an id in groups. The lookbehind comes after the first digits,
# because the search can jump to those.
_CARD: Final = _compiled(
    r"\d{4}(?:(?<=(?<![\w.+])(?<![\w.][-.])\d{4})|(?<=\\[nrtbf]\d{4}))"
    r"(?:([ -])\d{4}\1\d{4}\1\d{1,4}(?:\1\d{3})?|([ -])\d{6}\2\d{4,5}|\d{9,15})"
    r"(?!\w|[-.]\d)"
)
_ISSUERS: Final = _compiled(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3(?:0[0-5]|[689]\d)\d{11}(?:\d{2,5})?"  # Diners
    r"|35(?:2[89]|[3-8]\d)\d{12,15}"  # JCB
    r"|6(?:011|4[4-9]\d|5\d\d)\d{12,15}"  # Discover
    r"|62\d{14,17}|8[12]\d{14}"  # UnionPay, RuPay
    r"|(?:50|5[6-9]|6[0137])\d{14,17}|220[0-5]\d{12,15}"  # Maestro and others, Mir
)
_DOUBLED: Final = str.maketrans("0123456789", "0246813579")
_IBAN_DIGITS: Final = _compiled(r"\d\d(?:(?<=(?<![A-Za-z0-9])[A-Za-z]{2}\d\d)|(?<=\\[nrtbf][A-Za-z]{2}\d\d))")
_IBAN_CHARS: Final = {
    15: "NO",
    16: "BE",
    18: "DK FI FO GL NL SD",
    19: "MK SI",
    20: "AT BA EE KZ LT LU MN XK",
    21: "CH CR HR LI LV",
    22: "BG BH DE GB GE IE ME RS VA",
    23: "AE GI IL IQ OM SO TL",
    24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST",
    26: "IS TR",
    27: "BI DJ FR GR IT MC MR SM",
    28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
    29: "BR EG PS QA UA",
    30: "JO KW MU YE",
    31: "MT SC",
    32: "LC",
    33: "RU",
}
_IBAN_FORMS: Final = {
    country: _compiled(rf"[A-Za-z]{{2}}\d\d(?:[ -]?[A-Za-z0-9]){{{chars - 4}}}(?![A-Za-z0-9])")
    for chars, countries in _IBAN_CHARS.items()
    for country in countries.split()
}
_SEPARATORS: Final = str.maketrans("", "", " -")
_DIGITS: Final = bytes(ord("0") if chr(byte).isascii() and chr(byte).isdigit() else ord(" ") for byte in range(256))


def redact_numbers(text: str, encoded: bytes) -> str:
    """Replace IBANs and card numbers; `encoded` is the text in UTF-8, searched faster."""
    # Without eight digits in a row, apart from blanks and dashes, there is neither.
    digits = encoded.translate(_DIGITS, b" -")
    if b"0" * 8 not in digits:
        return text
    text = _redact_ibans(text)
    return _redact_cards(text) if b"0" * 13 in digits else text


def _redact_cards(text: str) -> str:
    """Replace numbers of 13 to 19 digits in a range of an issuer with a valid check digit."""
    parts: list[str] = []
    done = 0
    match = _CARD.search(text)
    while match:
        end = 0
        if _is_card(match[0]):
            end = match.end()
        # A security code may follow the number.
        elif match[1] and match[0][-4] == match[1] and _is_card(match[0][:-4]):
            end = match.end() - 4
        if end:
            parts += (text[done : match.start()], "[redacted card number]")
            done = end
        # A group of digits may precede a card number: continue after that group, not after the whole match.
        match = _CARD.search(text, end or (match.start() + 4 if match[1] or match[2] else match.end()))
    return "".join((*parts, text[done:])) if parts else text


def _is_card(number: str) -> bool:
    digits = number.translate(_SEPARATORS)
    if not digits.isascii() or _ISSUERS.fullmatch(digits) is None:
        return False
    total = sum(map(int, digits[-1::-2])) + sum(map(int, digits[-2::-2].translate(_DOUBLED)))
    return total % 10 == 0 and len(set(digits)) > 1


def _redact_ibans(text: str) -> str:
    """Replace account numbers in the length of their country with valid check digits."""
    parts: list[str] = []
    done = 0
    match = _IBAN_DIGITS.search(text)
    while match:
        start = match.start() - 2
        form = _IBAN_FORMS.get(text[start : start + 2].upper())
        iban = form.match(text, start) if form and start >= done else None
        code = iban[0].translate(_SEPARATORS) if iban else ""
        # ISO 7064: letters count from 10 on, the first four characters come last, and the rest by 97 is 1.
        if iban and code.isascii() and int("".join(str(int(sign, 36)) for sign in code[4:] + code[:4])) % 97 == 1:
            parts += (text[done:start], "[redacted IBAN]")
            done = iban.end()
        match = _IBAN_DIGITS.search(text, max(done, match.end()))
    return "".join((*parts, text[done:])) if parts else text


_MIN_CHARS: Final = 6  # a@b.io
_LOCAL: Final = _compiled(r"[\w.+%'-]++\Z")
_LOCAL_EDGE: Final = ".'%-"
_DOMAIN: Final = _compiled(
    r"(?!\d{1,3}x\.)"  # icon@2x.png
    r"(?:[^\W_][\w-]{0,62}+\.){1,8}(?:xn--[a-z0-9-]{2,59}+|[^\W\d_]{2,63})(?!\w)"
)


def redact_secrets(text: str) -> str:
    """Replace secrets and personal data of the built-in set; returns the same object if there are none."""
    if len(text) < _MIN_CHARS:
        return text
    encoded = text.encode("utf-8", "surrogatepass")
    text = redact_credentials(text, encoded)
    if "@" in text:
        text = _redact_emails(text)
    return redact_numbers(text, encoded)


def redact_record(record: dict[str, Any], functions: Sequence[Callable[[str], str]]) -> None:
    """Pass every text of a record that may be content through functions, in order and in place.

    With the built-in set among them, a text under a key that names a secret is replaced too: `{"password": ...}`.
    ``RedactionError`` if a function raised or returned no string; it names the type of the error only.
    """

    def change(text: str) -> str:
        for function in functions:
            try:
                redacted: object = function(text)
            except BaseException as error:  # noqa: BLE001 - the host's function may fail in any way, exits included
                # Not chained: the host's error may quote the text.
                raise RedactionError(f"redact raised {type(error).__name__}") from None
            if type(redacted) is not str:
                raise RedactionError("redact returned no text")
            text = redacted
        return text

    def change_pair(key: str, text: str) -> str:
        return "[redacted secret]" if text and is_secret_name(key) else change(text)

    map_texts(record, change, change_pair if redact_secrets in functions else None)


def _redact_emails(text: str) -> str:
    """Replace addresses, found around each `@` within a bounded distance."""
    parts: list[str] = []
    done = 0
    at = text.find("@")
    while at >= 0:
        domain = _DOMAIN.match(text, at + 1)
        local = _LOCAL.search(text, max(done, at - 64), at) if domain else None
        if domain and local and local[0].strip(_LOCAL_EDGE):
            start = at - len(local[0].lstrip(_LOCAL_EDGE))
            # The letter of an escape, as in JSON inside a text, is no part of the address.
            start += text[max(0, start - 1) : start] == "\\" and text[start] in "nrtbf" and start + 1 < at
            parts += (text[done:start], "[redacted e-mail]")
            done = domain.end()
        at = text.find("@", max(at + 1, done))
    parts.append(text[done:])
    return "".join(parts)
