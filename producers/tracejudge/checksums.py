"""Numbers that their checksum gives away: payment cards and IBANs."""

import re
from typing import Final

__all__ = ["redact_numbers"]

_CARD_SIGN: Final = "[redacted card number]"
_IBAN_SIGN: Final = "[redacted IBAN]"

# Alone among digits: no part of a longer number, a decimal, a word or an id in groups. What stands before is
# looked at after the first digits, for they are what the search can leap to.
_CARD: Final = re.compile(
    r"\d{4}(?:(?<=(?<![\w.+])(?<![\w.][-.])\d{4})|(?<=\\[nrtbf]\d{4}))"
    r"(?:([ -])\d{4}\1\d{4}\1\d{1,4}(?:\1\d{3})?|([ -])\d{6}\2\d{4,5}|\d{9,15})"
    r"(?!\w|[-.]\d)"
)
_ISSUERS: Final = re.compile(
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

_IBAN_DIGITS: Final = re.compile(r"\d\d(?:(?<=(?<![A-Za-z0-9])[A-Za-z]{2}\d\d)|(?<=\\[nrtbf][A-Za-z]{2}\d\d))")
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
    country: re.compile(rf"[A-Za-z]{{2}}\d\d(?:[ -]?[A-Za-z0-9]){{{chars - 4}}}(?![A-Za-z0-9])")
    for chars, countries in _IBAN_CHARS.items()
    for country in countries.split()
}
_SEPARATORS: Final = str.maketrans("", "", " -")
_DIGITS: Final = bytes(ord("0") if chr(byte).isascii() and chr(byte).isdigit() else ord(" ") for byte in range(256))
_IBAN_GLANCE: Final = b"0" * 8
_CARD_GLANCE: Final = b"0" * 13


def redact_numbers(text: str, encoded: bytes) -> str:
    """Replace IBANs and card numbers.

    Args:
        encoded: The text in UTF-8, in which a first look is faster: without eight digits in a row, blanks and
            dashes left aside, there is none.
    """
    digits = encoded.translate(_DIGITS, b" -")
    if _IBAN_GLANCE not in digits:
        return text
    text = _redact_ibans(text)
    return _redact_cards(text) if _CARD_GLANCE in digits else text


def _redact_cards(text: str) -> str:
    """Replace numbers of 13 to 19 digits that an issuer could have given and whose check digit is right."""
    parts: list[str] = []
    done = 0
    found = _CARD.search(text)
    while found:
        end = _card_end(found)
        if end:
            parts += (text[done : found.start()], _CARD_SIGN)
            done = end
        # A group that is none of a card may stand right before one: go on after it, not after the whole.
        found = _CARD.search(text, end or _after_first_group(found))
    return "".join((*parts, text[done:])) if parts else text


def _redact_ibans(text: str) -> str:
    """Replace account numbers of a known country, in its length, whose check digits are right."""
    parts: list[str] = []
    done = 0
    found = _IBAN_DIGITS.search(text)
    while found:
        start = found.start() - 2
        form = _IBAN_FORMS.get(text[start : start + 2].upper())
        iban = form.match(text, start) if form and start >= done else None
        if iban and _is_iban(iban[0].translate(_SEPARATORS)):
            parts += (text[done:start], _IBAN_SIGN)
            done = iban.end()
        found = _IBAN_DIGITS.search(text, max(done, found.end()))
    return "".join((*parts, text[done:])) if parts else text


def _card_end(found: re.Match[str]) -> int:
    """Say where a card number ends that begins here, 0 where there is none; a security code may follow it."""
    if _is_card(found[0].translate(_SEPARATORS)):
        return found.end()
    shorter = found[0][:-4]
    if found[1] and found[0][-4] == found[1] and _is_card(shorter.translate(_SEPARATORS)):
        return found.end() - 4
    return 0


def _after_first_group(found: re.Match[str]) -> int:
    return found.start() + 4 if found[1] or found[2] else found.end()


def _is_card(digits: str) -> bool:
    if not digits.isascii() or _ISSUERS.fullmatch(digits) is None:
        return False
    total = sum(map(int, digits[-1::-2])) + sum(map(int, digits[-2::-2].translate(_DOUBLED)))
    return total % 10 == 0 and len(set(digits)) > 1


def _is_iban(code: str) -> bool:
    """Check by ISO 7064: letters as numbers from 10 on, the first four signs last, the rest by 97 is 1."""
    if not code.isascii():
        return False
    return int("".join(str(int(sign, 36)) for sign in code[4:] + code[:4])) % 97 == 1
