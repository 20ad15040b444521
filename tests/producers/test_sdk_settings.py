import os
from typing import Any

import pytest
from support.cases import each_case

import tracejudge
from tracejudge import ConfigurationError
from tracejudge.redis_url import RedisUrl, parse_redis_url
from tracejudge.settings import BUILT_IN, Settings, load_settings

NOTHING = dict.fromkeys(("service", "redis_url", "environment", "release", "prefix", "disabled"))
BOUNDS = {"max_items": 10, "max_bytes": 20, "max_stream": 30, "exit_timeout_s": 1}


def load(environ: dict[str, str] | None = None, **variables: Any) -> Settings:
    return load_settings(**{**NOTHING, **BOUNDS, **variables}, environ=environ or {})


def test_defaults_fill_what_is_not_given() -> None:
    assert load(service="shop") == Settings(
        service="shop",
        redis_url=RedisUrl("redis://localhost:6379/0"),
        environment=None,
        release=None,
        prefix="tracejudge",
        disabled=False,
        max_items=10,
        max_bytes=20,
        max_stream=30,
        exit_timeout_s=1.0,
        drop="newest",
        redact=(),
        content=True,
        max_field_bytes=65_536,
        max_trace_bytes=262_144,
    )


VARIABLES = {
    "TRACEJUDGE_SERVICE": "from-variable",
    "TRACEJUDGE_REDIS_URL": "redis://variable:1/2",
    "TRACEJUDGE_ENVIRONMENT": "staging",
    "TRACEJUDGE_RELEASE": "7",
    "TRACEJUDGE_PREFIX": "other",
    "TRACEJUDGE_DISABLED": "1",
    "TRACEJUDGE_DROP": "oldest",
    "TRACEJUDGE_REDACT": "1",
    "TRACEJUDGE_CONTENT": "0",
    "TRACEJUDGE_CONTEXT_TOOLS": "kb_search, find",
}


def test_variables_fill_what_no_argument_gives() -> None:
    settings = load(VARIABLES)
    assert (settings.service, settings.redis_url.secret) == ("from-variable", "redis://variable:1/2")
    assert (settings.environment, settings.release, settings.prefix) == ("staging", "7", "other")
    assert settings.disabled
    assert (settings.drop, settings.redact, settings.content) == ("oldest", (BUILT_IN,), False)
    assert settings.context_tools == ("kb_search", "find")


def test_arguments_come_before_variables() -> None:
    settings = load(
        VARIABLES,
        service="shop",
        redis_url="unix:///run/redis.sock",
        environment="prod",
        release="8",
        prefix="mine",
        disabled=False,
        drop="newest",
        redact=False,
        content=True,
    )
    assert (settings.service, settings.redis_url.secret) == ("shop", "unix:///run/redis.sock")
    assert (settings.environment, settings.release, settings.prefix) == ("prod", "8", "mine")
    assert not settings.disabled
    assert (settings.drop, settings.redact, settings.content) == ("newest", (), True)


def shorten(text: str) -> str:
    return text[:3]


REDACTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "nothing": (None, ()),
    "off": (False, ()),
    "built in": (True, (BUILT_IN,)),
    "a function": (shorten, (shorten,)),
    "a list": ([shorten, str.lower], (shorten, str.lower)),
    "the built-in one among others": ([shorten, True], (shorten, BUILT_IN)),
}


@each_case(("value", "functions"), REDACTIONS.values(), ids=REDACTIONS.keys())
def test_redaction_is_a_row_of_functions(value: Any, functions: tuple[Any, ...]) -> None:
    assert load(service="shop", redact=value).redact == functions


def test_a_function_given_stands_before_the_variable() -> None:
    assert load({"TRACEJUDGE_REDACT": "1"}, service="shop", redact=shorten).redact == (shorten,)


def test_an_empty_variable_is_an_unset_one() -> None:
    settings = load(dict.fromkeys(VARIABLES, ""), service="shop")
    assert settings == load(service="shop")


def test_a_disabled_sdk_needs_no_service() -> None:
    assert load({"TRACEJUDGE_DISABLED": "true"}).disabled


URL_FORM = (
    "redis://user:password@host:6379/0, rediss://…, redis+cluster://…, redis+sentinel://… or unix:///path/to/socket"
)
QUOTING = "percent-encode special characters in the password"
NO_HOST = f"redis_url has no valid host and port: {URL_FORM}; {QUOTING}"

NO_REDACTION = "redact must be True, False, a function of a text, or a list of these"

WRONG = {
    "no service": ({}, 'service is missing: init(service="my-service") or TRACEJUDGE_SERVICE'),
    "empty service": ({"service": " "}, "service must be a non-empty string: give it to init or in TRACEJUDGE_SERVICE"),
    "service no string": (
        {"service": 7},
        "service must be a non-empty string: give it to init or in TRACEJUDGE_SERVICE",
    ),
    "release not unicode": (
        {"release": "\udcff"},
        "release is not valid Unicode: give it to init or in TRACEJUDGE_RELEASE as UTF-8",
    ),
    "context_tools no list": (
        {"service": "shop", "context_tools": "kb_search"},
        'context_tools must be a list of names, as ["kb_search"]',
    ),
    "scheme": (
        {"redis_url": "http://s3cret@host"},
        f"redis_url must begin with redis://, rediss:// or unix://: {URL_FORM}",
    ),
    "no scheme": (
        {"redis_url": "localhost:6379"},
        f"redis_url must begin with redis://, rediss:// or unix://: {URL_FORM}",
    ),
    "no host": ({"redis_url": "redis://"}, NO_HOST),
    "port": ({"redis_url": "redis://host:s3cret"}, NO_HOST),
    "password with a slash": ({"redis_url": "redis://:s3c/ret@host:6379/0"}, NO_HOST),
    "password with a hash": ({"redis_url": "redis://user:12#s3cret@host:6379/0"}, NO_HOST),
    "digits and a slash": ({"redis_url": "redis://user:12/s3cret@host:6379/0"}, NO_HOST),
    "digits and a question mark": ({"redis_url": "redis://user:12?s3cret@host:6379/0"}, NO_HOST),
    "bracket": ({"redis_url": "redis://[s3cret"}, NO_HOST),
    "database": (
        {"redis_url": "redis://host/traces"},
        f"the path of redis_url must be a database number: {URL_FORM}; {QUOTING}",
    ),
    "no socket": ({"redis_url": "unix://"}, "redis_url names no socket: unix:///path/to/socket"),
    "RESP3": (
        {"redis_url": "redis://host?protocol=3"},
        "redis_url has an option that cannot be used, protocol: replies are read as RESP2; correct or remove it",
    ),
    "decoded replies": (
        {"redis_url": "unix:///run/redis.sock?decode_responses=True"},
        (
            "redis_url has an option that cannot be used, decode_responses: replies are read as bytes; "
            "correct or remove it"
        ),
    ),
    "short timeout": (
        {"redis_url": "redis+sentinel://h1:1/m?socket_timeout=0.5"},
        "redis_url has an option that cannot be used, socket_timeout: its value is wrong; correct or remove it",
    ),
    "a database of a cluster": (
        {"redis_url": "redis+cluster://u:s3cret@h1:1,h2:2/3"},
        (
            "redis_url names a database, and a cluster has only number 0: "
            "redis+cluster://user:password@host1:6379,host2:6379"
        ),
    ),
    "a database of a cluster as an option": (
        {"redis_url": "redis+cluster://h1:1?db=0"},
        (
            "redis_url has an option that cannot be used, db: remove it; allowed are client_name, "
            "health_check_interval, password, protocol, retry_on_timeout, socket_connect_timeout, socket_keepalive, "
            "socket_timeout, username"
        ),
    ),
    "TLS without TLS of a cluster": (
        {"redis_url": "redis+cluster://h1?ssl_ca_certs=/ca"},
        "redis_url has an option that cannot be used, ssl_ca_certs: TLS needs rediss://",
    ),
    "TLS without TLS": (
        {"redis_url": "redis://host?ssl_ca_certs=/ca"},
        "redis_url has an option that cannot be used, ssl_ca_certs: TLS needs rediss://",
    ),
    "a part of a password": (
        {"redis_url": "redis://user:12?s3cret=1@host"},
        (
            "redis_url has an option that cannot be used, behind the ?: remove it; allowed are client_name, db, "
            "health_check_interval, password, protocol, retry_on_timeout, socket_connect_timeout, socket_keepalive, "
            "socket_timeout, username"
        ),
    ),
    "prefix with colon": ({"prefix": "shop:"}, 'prefix must be a word without a colon at its end: prefix="tracejudge"'),
    "prefix with blank": (
        {"prefix": "my shop"},
        'prefix must be a word without a colon at its end: prefix="tracejudge"',
    ),
    "disabled": ({"disabled": 1}, "disabled must be True or False, or TRACEJUDGE_DISABLED 1 or 0"),
    "drop": ({"drop": "all"}, 'drop must be "newest" or "oldest": give it to init or in TRACEJUDGE_DROP'),
    "content": ({"content": "no"}, "content must be True or False, or TRACEJUDGE_CONTENT 1 or 0"),
    "redact no function": ({"redact": "s3cret"}, NO_REDACTION),
    "redact nothing": ({"redact": []}, NO_REDACTION),
    "redact one that is no function": ({"redact": [str.lower, None]}, NO_REDACTION),
    "no field bytes": ({"max_field_bytes": 0}, "max_field_bytes must be a whole number above 0"),
    "no trace bytes": ({"max_trace_bytes": True}, "max_trace_bytes must be a whole number above 0"),
    "no items": ({"max_items": 0}, "max_items must be a whole number above 0"),
    "negative bytes": ({"max_bytes": -1}, "max_bytes must be a whole number above 0"),
    "fraction": ({"max_stream": 1.5}, "max_stream must be a whole number above 0"),
    "truth": ({"max_items": True}, "max_items must be a whole number above 0"),
    "negative wait": ({"exit_timeout_s": -1}, "exit_timeout_s must be a finite number of seconds, 0 or more"),
    "endless wait": ({"exit_timeout_s": float("inf")}, "exit_timeout_s must be a finite number of seconds, 0 or more"),
    "wait no number": ({"exit_timeout_s": "2"}, "exit_timeout_s must be a finite number of seconds, 0 or more"),
}


@each_case(("given", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_argument_is_refused_with_its_fix(given: dict[str, Any], message: str) -> None:
    service = {} if message.startswith("service is missing") else {"service": "shop"}
    with pytest.raises(ConfigurationError) as raised:
        tracejudge.init(**{**service, **given})
    assert str(raised.value) == message
    assert "s3c" not in repr(raised.value.__cause__)


WRONG_VARIABLES = {
    "TRACEJUDGE_DISABLED": "disabled must be True or False, or TRACEJUDGE_DISABLED 1 or 0",
    "TRACEJUDGE_CONTENT": "content must be True or False, or TRACEJUDGE_CONTENT 1 or 0",
    "TRACEJUDGE_REDACT": "redact must be True or False, or TRACEJUDGE_REDACT 1 or 0",
    "TRACEJUDGE_DROP": 'drop must be "newest" or "oldest": give it to init or in TRACEJUDGE_DROP',
}


@each_case(("variable", "message"), WRONG_VARIABLES.items(), ids=WRONG_VARIABLES.keys())
def test_a_wrong_variable_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str, message: str) -> None:
    monkeypatch.setitem(os.environ, variable, "perhaps")
    with pytest.raises(ConfigurationError) as raised:
        tracejudge.init(service="shop")
    assert str(raised.value) == message


def test_a_wrong_argument_is_also_a_value_error() -> None:
    with pytest.raises(ValueError, match="service is missing"):
        tracejudge.init()


MASKED = {
    "redis://user:s3cret@host:6379/0": "redis://host:6379/0",
    "rediss://:s3cret@[::1]:6380/2": "rediss://[::1]:6380/2",
    "redis://:s3%2Fcret@host": "redis://host",
    "redis://host/0?password=s3cret": "redis://host/0",
    "redis://host/0?password=s3@cret": "(an address that cannot be read)",
    "unix://user:s3cret@/run/redis.sock?password=s3cret": "unix:///run/redis.sock",
}


@each_case(("url", "shown"), MASKED.items(), ids=MASKED.values())
def test_a_url_shows_itself_without_user_password_and_options(url: str, shown: str) -> None:
    parsed = parse_redis_url(url)
    assert parsed.secret == url
    assert (str(parsed), repr(parsed)) == (shown, repr(shown))
    assert "s3" not in repr(load(service="shop", redis_url=url))
