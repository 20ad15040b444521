"""Which variables a judge in code finds: those of the worker without its secrets, for its reasons leave the house."""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

__all__ = ["as_judges_find_it", "passed_on", "withhold"]

_SECRET: Final = re.compile(
    r"^TRACEJUDGE_|KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|HEADERS|PASS($|_)|(^|_)(PW|AUTH)($|_)",
    re.IGNORECASE,
)
_WITH_LOGIN: Final = re.compile(r"://[^/\s@]*@")
_withheld: Final[set[str]] = set()


def withhold(*names: str) -> None:
    """Keep further variables from all judges in code: those that the configuration names as secrets."""
    _withheld.update(names)


def passed_on(environment: Mapping[str, str], wanted: Collection[str] = ()) -> dict[str, str]:
    """Choose the variables that a judge in code may know.

    Left out are those whose names begin with `TRACEJUDGE_` or speak of a key, token, secret, password, credential,
    cookie or headers (`OTEL_EXPORTER_OTLP_HEADERS` may hold the key of a collector), those whose values are addresses
    with a login, and those that the configuration names as secrets.

    Args:
        wanted: Names of variables that it finds all the same.
    """
    return {name: value for name, value in environment.items() if name in wanted or not _is_secret(name, value)}


@contextmanager
def as_judges_find_it(wanted: Collection[str] = ()) -> Iterator[None]:
    """Leave the others out of this process too, while a judge is imported: what it lacks is to be told at the start."""
    whole = dict(os.environ)
    for name in whole.keys() - passed_on(whole, wanted).keys():
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update({name: value for name, value in whole.items() if name not in os.environ})


def _is_secret(name: str, value: str) -> bool:
    return name in _withheld or _SECRET.search(name) is not None or _WITH_LOGIN.search(value) is not None
