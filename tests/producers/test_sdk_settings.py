"""Arguments of `init`, variables and URLs: what holds, and what is refused with which fix."""

import json
from typing import Any

import pytest
from lookalikes import table

import tracejudge
from tracejudge import ConfigurationError
from tracejudge.delivery.transport import make_pool
from tracejudge.redis_url import ClusterUrl, RedisUrl, cluster_url, parse_redis_url, sentinel_url
from tracejudge.settings import BUILT_IN, Settings, load_settings

NOTHING = dict.fromkeys(("service", "redis_url", "environment", "release", "prefix", "disabled"))
BOUNDS = {"max_items": 10, "max_bytes": 20, "max_stream": 30, "exit_timeout_s": 1}
GIVEN = {"service": "from-variable", "redis_url": "redis://variable:1/2", "environment": "staging", "release": "7"}
GIVEN |= {"prefix": "other", "drop": "oldest"}
VARIABLES = {f"TRACEJUDGE_{name.upper()}": value for name, value in GIVEN.items()}
VARIABLES |= {"TRACEJUDGE_DISABLED": "1", "TRACEJUDGE_REDACT": "1", "TRACEJUDGE_CONTENT": "0"}
VARIABLES |= {"TRACEJUDGE_CONTEXT_TOOLS": "kb_search, find"}


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
    assert load(dict.fromkeys(VARIABLES, ""), service="shop") == load(service="shop"), "an empty variable is unset"
    assert load({"TRACEJUDGE_DISABLED": "true"}).disabled, "which needs no service"


def test_variables_fill_what_no_argument_gives() -> None:
    switches: dict[str, Any] = {"disabled": True, "redact": True, "content": False}
    tools = {"context_tools": ("kb_search", "find")}
    assert load(VARIABLES) == load(**GIVEN, **switches, **tools)
    own = {"service": "shop", "redis_url": "unix:///run/redis.sock", "environment": "prod", "release": "8"}
    own |= {"prefix": "mine", "drop": "newest"}
    settings = load(VARIABLES, **own, **{name: not value for name, value in switches.items()})
    shown = {name: getattr(settings, name) for name in own}
    assert (shown, settings.redis_url.secret) == ({**own, "redis_url": RedisUrl(own["redis_url"])}, own["redis_url"])
    assert (settings.disabled, settings.redact, settings.content, settings.context_tools) == (
        *(False, (), True),
        tools["context_tools"],
    )


def test_redaction_is_a_row_of_functions() -> None:
    for value, functions in (
        *((None, ()), (False, ()), (True, (BUILT_IN,)), (str.upper, (str.upper,))),
        *(([str.upper, str.lower], (str.upper, str.lower)), ([str.upper, True], (str.upper, BUILT_IN))),
    ):
        assert load(service="shop", redact=value).redact == functions, value
    assert load({"TRACEJUDGE_REDACT": "1"}, service="shop", redact=str.upper).redact == (str.upper,)


def test_a_wrong_argument_or_variable_is_refused_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = table("wrong_settings")
    (no_function,) = {message for name, _, message in cases if name == "redact nothing"}
    cases.append(("redact one that is no function", {"service": "shop", "redact": [str.lower, None]}, no_function))
    for name, given, message in cases:
        with pytest.raises(ConfigurationError) as raised:
            tracejudge.init(**given)
        assert str(raised.value) == message, name
        assert "s3c" not in repr(raised.value.__cause__), name
        assert raised.value.__cause__ is None or "://" not in name, name
    switch = "{} must be True or False, or TRACEJUDGE_{} 1 or 0"
    messages = {name: switch.format(name.lower(), name) for name in ("DISABLED", "CONTENT", "REDACT")}
    messages["DROP"] = 'drop must be "newest" or "oldest": give it to init or in TRACEJUDGE_DROP'
    for variable, message in messages.items():
        with monkeypatch.context() as patch:
            patch.setenv(f"TRACEJUDGE_{variable}", "perhaps")
            with pytest.raises(ConfigurationError) as raised:
                tracejudge.init(service="shop")
        assert str(raised.value) == message
    assert isinstance(raised.value, ValueError)


def test_a_url_shows_itself_without_user_password_and_options() -> None:
    for url, shown in table("urls")["shown"]:
        parsed = parse_redis_url(url)
        assert parsed.secret == url
        assert (str(parsed), repr(parsed)) == (shown, repr(shown))
        assert "s3" not in f"{load(service='shop', redis_url=url)!r} {sentinel_url(url)!r} {cluster_url(url)!r}"


def test_a_url_of_several_servers_names_them_and_what_all_of_them_need() -> None:
    for text, expected in table("urls")["several"]:
        url = parse_redis_url(text)
        read = sentinel_url(url.secret) or cluster_url(url.secret)
        assert (read and [type(read).__name__, *json.loads(json.dumps(read))]) == expected, text
        assert url.is_cluster == (type(read) is ClusterUrl), text


def test_names_of_hosts_sentinels_and_nodes_are_checked_whatever_the_driver_s_default() -> None:
    """Before redis-py 6 that is to take any host's certificate."""

    def pool(url: str) -> Any:
        return make_pool(url, reply_timeout_s=60, connect_timeout_s=60)

    for url, checked in table("urls")["checked"]:
        pools = [pool(url)]
        if not url.startswith("unix"):
            behind = pool(url.replace("://host", "+sentinel://h1:1,h2:2/m"))
            of_cluster = pool(url.replace("://host", "+cluster://h1:1,h2:2"))
            clients = [*behind.sentinel_manager.sentinels, of_cluster.sentinel_manager.client("h1", 1)]
            pools += [behind, of_cluster, *(client.connection_pool for client in clients)]
            assert len(pools) == 6, url
        assert [each.connection_kwargs.get("ssl_check_hostname") for each in pools] == [checked] * len(pools), url
