"""Keys, tokens and passwords: forms that their issuers gave them so that they can be found."""

import re
from typing import Final, NamedTuple

__all__ = ["is_secret_name", "redact_credentials"]

_START: Final = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrtbf]))"
"""Also behind an escape, as in JSON that stands in a text."""
_WORD: Final = "[A-Za-z0-9]"
_LINE: Final = "[A-Za-z0-9_-]"
_DIGIT_SOON: Final = r"(?=[A-Za-z._~+/=-]{0,64}[0-9])"
_KEY: Final = "[redacted key]"
_TOKEN: Final = "[redacted token]"  # noqa: S105 - a sign, no token


class _Form(NamedTuple):
    """One form of a secret.

    Attributes:
        triggers: What must occur before the pattern is tried; looking for it costs next to nothing.
        pattern: What the secret looks like.
        replacement: What stands in its place, as `re.sub` takes it.
    """

    triggers: tuple[str, ...]
    pattern: re.Pattern[str]
    replacement: str


def _named(trigger: str, name: str, value: str) -> _Form:
    """Describe a value that only its name before it gives away: `name = value`, in code, JSON, YAML or a header."""
    between = r"""[\\"']{0,2}\s{0,3}(?:=>|:=|[:=])\s{0,3}[\\"']{0,2}"""
    return _Form((trigger,), re.compile(f"(?i)({name}{between}){value}"), rf"\1{_KEY}")


def _issued(prefixes: str, rest: str, sign: str = _KEY) -> _Form:
    """Describe a secret that begins with one of some prefixes, parted by blanks, where a word begins."""
    triggers = tuple(prefixes.split())
    start = "|".join(map(re.escape, triggers))
    return _Form(triggers, re.compile(f"{_START}(?:{start}){rest}"), sign)


_SURROUNDED: Final = (
    _Form(
        ("-----begin ",),
        re.compile(
            r"-----BEGIN (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----(?=[\s\S]{0,300}?[A-Za-z0-9+/]{24})"
            r"[^-]*+(?:-(?!----END )[^-]*+)*+(?:-----END [A-Z0-9 ]{1,60}-----)?"
        ),
        "[redacted private key]",
    ),
    _Form(("://",), re.compile(r"""(://[^\s/:@?#"'<>]{0,128}:)[^\s/"'<>,]{1,256}@"""), r"\1[redacted password]@"),
    _Form(
        ("hooks.slack.com/",),
        re.compile(r"(hooks\.slack\.com/(?:services|workflows)/)[A-Za-z0-9/_-]{20,}+"),
        rf"\1{_TOKEN}",
    ),
    _Form(
        ("authorization",),
        re.compile(
            r"""(?i)(authorization[\\"']{0,2}\s{0,3}[:=]\s{0,3}[\\"']{0,2}(?:bearer|basic|token|bot)\s{1,3})"""
            r"[A-Za-z0-9._~+/=-]{6,}+"
        ),
        rf"\1{_TOKEN}",
    ),
    _Form(
        ("bearer",),
        re.compile(rf"(?i)((?<![a-z0-9])bearer\s{{1,3}}){_DIGIT_SOON}[A-Za-z0-9._~+/=-]{{16,}}+"),
        rf"\1{_TOKEN}",
    ),
    _named(
        "secret",
        r"(?:secret[_\- ]?(?:access[_\- ]?)?key|aws[_\- ]?secret)",
        r"[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])",
    ),
    _Form(
        ('":',),
        re.compile(
            r"""(?i)(\\{0,2}"(?:[\w-]{0,40}[_-])?(?:pass(?:word|wd|phrase)|pwd|(?:client|app)[_-]?secret|secret"""
            r"""|api[_-]?key|(?:access|refresh|auth)[_-]?token)\\{0,2}"\s{0,3}:\s{0,3}\\{0,2}")[^"\\]{1,512}"""
        ),
        rf"\1{_KEY}",
    ),
    _named("key", r"(?:api|account|subscription)[_\- ]?key", rf"{_DIGIT_SOON}[A-Za-z0-9_+/-]{{24,}}+={{0,2}}"),
)
"""Found by what stands around them; a private key first, whose text may hold anything. Triggers in lower case."""

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

_SECRET_NAME: Final = re.compile(
    r"(?i)(?:.{0,40}[_\-. ])?"
    r"(?:pass(?:word|wd|phrase)|pwd|secret|secret[_\- ]?(?:access[_\- ]?)?key|(?:client|app)[_\- ]?secret|api[_\- ]?key"
    r"|(?:access|refresh|auth|bearer|id)[_\- ]?token|authorization|private[_\- ]?key|cvv|cvc)"
)
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_MAX_NAME_CHARS: Final = 64


def redact_credentials(text: str, encoded: bytes) -> str:
    """Replace keys, tokens, private keys and passwords in URLs.

    Args:
        encoded: The text in UTF-8, in which a first look is faster.
    """
    lowered = encoded.lower()
    for triggers, pattern, replacement in _SURROUNDED:
        if triggers[0].encode() in lowered:
            text = pattern.sub(replacement, text)
    return _redact_issued(text) if _RUN in encoded.translate(_RUNS) else text


def _redact_issued(text: str) -> str:
    long_words = " ".join([word for word in text.split() if len(word) >= _MIN_RUN])
    for triggers, pattern, replacement in _ISSUED:
        if any(trigger in long_words for trigger in triggers):
            text = pattern.sub(replacement, text)
    return text


def is_secret_name(key: str) -> bool:
    """Tell whether a key says that its value is a secret: `password`, `clientSecret`, `x-api-key`."""
    if len(key) > _MAX_NAME_CHARS:
        return False
    return _SECRET_NAME.fullmatch(_CAMEL.sub("_", key)) is not None
