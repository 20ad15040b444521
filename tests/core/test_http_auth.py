"""Who may read the metrics: the settings, where the secret comes from, and what opens the page."""

import base64
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.cases import each_case
from support.redis_kinds import make_certificates

from worker.core.config.loading import load
from worker.core.config.serving import Tls
from worker.core.config.settings import Settings, SettingsError
from worker.core.telemetry.http_server import HttpAuth

SECRET = "s3cret-t0ken"  # noqa: S105 - nobody's
IN_VARIABLE = Settings(metrics_token_env="TOKEN")  # noqa: S106 - a name


def in_file(path: str) -> Settings:
    return Settings(metrics_token_file=path)


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def test_a_page_without_settings_is_open() -> None:
    access = HttpAuth.from_settings(Settings(), {})
    assert (access.scheme, access.challenge) == (None, None)
    assert access.admits(None)
    assert access.admits("Bearer anything")


BEARER = {
    "right": (f"Bearer {SECRET}", True),
    "scheme in another case": (f"bEARER  {SECRET} ", True),
    "none": (None, False),
    "empty": ("", False),
    "another": ("Bearer other", False),
    "a beginning": (f"Bearer {SECRET[:-1]}", False),
    "more": (f"Bearer {SECRET}x", False),
    "another scheme": (f"Basic {SECRET}", False),
    "no scheme": (SECRET, False),
    "not ASCII": ("Bearer s3cr\xe9t", False),
    "beyond Latin-1": ("Bearer \u20ac", False),
}


@each_case(("header", "opens"), BEARER.values(), ids=BEARER.keys())
def test_a_token_opens_the_page_and_nothing_else_does(header: str | None, *, opens: bool) -> None:
    access = HttpAuth.from_settings(IN_VARIABLE, {"TOKEN": SECRET})
    assert access.admits(header) is opens
    assert access.challenge == 'Bearer realm="tracejudge"'


BASIC = {
    "right": (basic("prometheus", "pä:ss wörd"), True),
    "another user": (basic("other", "pä:ss wörd"), False),
    "another password": (basic("prometheus", "other"), False),
    "no password": (basic("prometheus", ""), False),
    "no base64": ("Basic prometheus", False),
    "a token": ("Bearer pä:ss wörd", False),
    "none": (None, False),
}


@each_case(("header", "opens"), BASIC.values(), ids=BASIC.keys())
def test_user_and_password_open_the_page(tmp_path: Path, header: str | None, *, opens: bool) -> None:
    (tmp_path / "password").write_text("pä:ss wörd\n", encoding="utf-8")
    settings = Settings(metrics_user="prometheus", metrics_password_file=str(tmp_path / "password"))
    access = HttpAuth.from_settings(settings, {})
    assert access.admits(header) is opens
    assert access.challenge == 'Basic realm="tracejudge", charset="UTF-8"'


def test_nothing_that_prints_shows_the_secret() -> None:
    access = HttpAuth.from_settings(IN_VARIABLE, {"TOKEN": SECRET})
    assert SECRET not in f"{access!r} {access}"


ABSENT = {
    "variable": (IN_VARIABLE, {}, "metrics_token_env: the variable TOKEN is empty"),
    "blank": (IN_VARIABLE, {"TOKEN": " "}, "metrics_token_env: the variable TOKEN is empty"),
    "file": (in_file("absent"), {}, "metrics_token_file: absent cannot be read (No such file"),
    "folder": (in_file("."), {}, "metrics_token_file: . cannot be read (Is a directory)"),
    "password": (
        Settings(metrics_user="u", metrics_password_env="PASS"),  # noqa: S106 - a name
        {},
        "metrics_password_env: the variable PASS is empty",
    ),
    "token of two words": (
        IN_VARIABLE,
        {"TOKEN": f"{SECRET} more"},
        "metrics_token: must be ASCII characters without blanks",
    ),
}


@each_case(("settings", "environment", "message"), ABSENT.values(), ids=ABSENT.keys())
def test_a_secret_that_does_not_serve_is_told_without_it(
    settings: Settings, environment: Mapping[str, str], message: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        HttpAuth.from_settings(settings, environment)
    assert str(refused.value).startswith(message)
    assert SECRET not in str(refused.value)


MISTAKES = {
    "a token itself": ({"token_env": SECRET}, "metrics_token_env: give the name of the variable that holds the secret"),
    "a password itself": (
        {"user": "u", "password_env": SECRET},
        "metrics_password_env: give the name of the variable that holds the secret",
    ),
    "two tokens": (
        {"token_env": "T", "token_file": "f"},
        "metrics_token_file: goes in place of metrics_token_env; take one of them out",
    ),
    "two passwords": (
        {"user": "u", "password_env": "P", "password_file": "f"},
        "metrics_password_file: goes in place of metrics_password_env; take one of them out",
    ),
    "token and user": (
        {"token_env": "T", "user": "u", "password_env": "P"},
        "metrics_token_env: goes in place of metrics_user and its password; take one or the other out",
    ),
    "password without user": ({"password_env": "P"}, "metrics_password_env: goes with metrics_user; set that too"),
    "user without password": (
        {"user": "u"},
        "metrics_user: goes with metrics_password_env or metrics_password_file; set one of them",
    ),
    "user with a colon": ({"user": "a:b", "password_env": "P"}, "metrics_user: may hold no colon and no line break"),
    "certificate alone": (
        {"tls_cert": "c"},
        "metrics_tls_cert: metrics_tls_cert and metrics_tls_key go together; set both",
    ),
    "key alone": ({"tls_key": "k"}, "metrics_tls_key: metrics_tls_cert and metrics_tls_key go together; set both"),
}


@each_case(("values", "said"), MISTAKES.values(), ids=MISTAKES.keys())
def test_settings_that_do_not_go_together_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: Mapping[str, str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (key, *_) = said.split(":")
    with pytest.raises(SettingsError) as refused:
        load({f"TRACEJUDGE_METRICS_{name.upper()}": value for name, value in values.items()})
    assert str(refused.value).startswith(f"TRACEJUDGE_{key.upper()}: {said}")
    assert SECRET not in str(refused.value)


def test_certificate_and_key_are_read_before_anything_starts(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    assert Tls.from_table(Settings(), "metrics_tls_").context() is None
    assert Tls("metrics_tls_", str(files.server), str(files.server_key)).context() is not None
    for cert, key, message in (
        (files.server, files.client_key, "certificate and key cannot be used (KEY_VALUES_MISMATCH)"),
        (files.server_key, files.server_key, "certificate and key cannot be used"),
        (tmp_path / "absent", files.server_key, "certificate or key cannot be read (No such file or directory)"),
    ):
        with pytest.raises(SettingsError, match=r"^metrics_tls_cert: ") as refused:
            Tls("metrics_tls_", str(cert), str(key)).context()
        assert message in str(refused.value)
