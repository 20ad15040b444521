"""The settings: what holds with nothing said, who wins, and one clear line for every mistake."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.cases import each_case
from support.configuration import (
    FILE,
    LEXICAL,
    MODEL,
    NAME_THE_VARIABLE,
    QUOTE,
    RULE,
    SECRET,
    Mistake,
    Variables,
    check_mistake,
    check_variable,
    features_in,
    in_file,
    in_rule,
    keys_of,
)

from judges.core.model import HeaderSource, ModelSettings, Price
from judges.models.registry import PROVIDERS
from judges.registry import catalogue
from judges.requests.redaction import Redact
from tracejudge.settings import VARIABLES as SDK_VARIABLES
from tracejudge.settings import load_settings
from worker.base.delivery.settings import OtlpSettings
from worker.base.monitor.feature import Monitor
from worker.core.config.loading import load
from worker.core.config.reading import key_types, place_of, unknown_variables
from worker.core.config.settings import JudgeCalibration, Rule, Settings, SettingsError, Where

KEYS = tuple(key_types())

EXAMPLE = """
redis_url = "redis://localhost:6379/0"
metrics_port = 9808

[models.default]
provider = "openai"
base_url = "https://api.openai.com/v1"
model = "gpt-6-luna"
api_key_env = "OPENAI_API_KEY"
max_in_flight = 256
max_input_tokens = 120_000
price = { input = 0.40, output = 1.60 }

[[rules]]
name = "support answers stay grounded"
where = { service = "support-*", environment = "prod", has = ["context"] }
judges = ["groundedness"]
rate = 0.05
always = ["error", "negative_feedback"]
model = "default"
"""
"""The contract's example without what belongs to later issues."""

KNOWN_PROVIDERS = f"{', '.join(sorted(PROVIDERS))}; most endpoints are openai, with a base_url"
PRICE = "as { input = 0.10, output = 0.50 }"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in an empty folder: `tracejudge.toml` is read from the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str = FILE) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


# --- what holds ---


def test_defaults_of_the_contract_hold_with_nothing_configured() -> None:
    assert load({}) == Settings.from_keys(
        redis_url="redis://localhost:6379/0",
        broker_url=None,
        prefix="tracejudge",
        metrics_host="127.0.0.1",
        metrics_port=9808,
        otlp_endpoint=None,
        export_explanations=False,
        sampling_key="tracejudge",
        retention=86_400.0,
        max_stream=200_000,
        max_stream_bytes=1 << 30,
        max_trace_bytes=4 << 20,
        max_outbox=200_000,
        max_waiting_bytes=256 << 20,
        give_up_after=6 * 3600.0,
        grace_s=20.0,
        shift_s=5.0,
        task_events=False,
        batch_size=32,
        series_labels=(),
        max_services=200,
        log_level="info",
        roles=("ingest", "judge", "export", "monitor"),
        models={"default": ModelSettings(provider="lexical")},
        judges={},
        rules=(
            Rule(name="default, with context", judges=("groundedness",), where=Where(has=("context",))),
            Rule(name="default", judges=("relevance_to_query", "safety")),
        ),
    )


def test_a_rule_needs_only_name_and_judges() -> None:
    write(RULE)
    assert load({}).rules == (
        Rule(name="all", judges=("safety",), where=Where(), rate=1.0, always=(), model="default"),
    )


def test_a_model_needs_only_address_and_name() -> None:
    write(MODEL)
    assert load({}).models == {
        "default": ModelSettings(
            provider="openai",
            base_url="https://host/v1",
            model="m",
            api_key_env=None,
            max_in_flight=256,
            max_input_tokens=120_000,
            price=None,
        )
    }


def test_the_example_of_the_contract_loads() -> None:
    write(EXAMPLE)
    assert load({}) == Settings(
        models={
            "default": ModelSettings(
                provider="openai",
                base_url="https://api.openai.com/v1",
                model="gpt-6-luna",
                api_key_env="OPENAI_API_KEY",
                max_in_flight=256,
                max_input_tokens=120_000,
                price=Price(0.40, 1.60),
            )
        },
        rules=(
            Rule(
                name="support answers stay grounded",
                where=Where(service="support-*", environment="prod", has=("context",)),
                judges=("groundedness",),
                rate=0.05,
                always=("error", "negative_feedback"),
                model="default",
            ),
        ),
    )


@pytest.mark.parametrize("text", ["rules = []", "[models]"])
def test_an_empty_list_is_as_good_as_none(text: str) -> None:
    write(text)
    assert load({}) == load({}, write("", "empty.toml"))


def test_queue_and_ledger_follow_from_prefix_and_retention() -> None:
    settings = Settings(prefix="mine", retention=3600.0)
    assert (settings.queue("gpt"), settings.ledger_ttl_s) == ("mine.judge.gpt", 3600 + 86_400)
    assert Settings().queue("code") == "tracejudge.judge.code"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings().metrics_port = 1  # type: ignore[misc]


# --- who wins ---


def test_variables_win_over_the_file_and_arguments_over_both() -> None:
    write("max_services = 1\nbatch_size = 1\nmax_dead = 1\n")
    variables = {"TRACEJUDGE_BATCH_SIZE": "2", "TRACEJUDGE_MAX_DEAD": "2"}
    settings = load(variables, None, {"max_dead": 3, "redis_url": None})
    assert (settings.max_services, settings.batch_size, settings.max_dead) == (1, 2, 3)
    assert settings.redis_url == Settings().redis_url, "an argument that was not given changes nothing"


CLUSTER = {"TRACEJUDGE_REDIS_URL": "redis+cluster://a,b:7000", "TRACEJUDGE_BROKER_URL": "amqp://host"}


def test_partitions_are_by_the_address_and_a_worker_serves_ranges_of_them() -> None:
    rows: list[tuple[dict[str, str], int, list[int]]] = [
        ({}, 1, [0]),
        ({"partitions": "1"}, 1, [0]),
        (CLUSTER, 8, [*range(8)]),
        ({**CLUSTER, "partitions": "64"}, 64, [*range(64)]),
        ({**CLUSTER, "served_partitions": "0-3"}, 8, [0, 1, 2, 3]),
        ({**CLUSTER, "served_partitions": "7,0-1,1,4-4"}, 8, [0, 1, 4, 7]),
        ({**CLUSTER, "partitions": "12", "served_partitions": "9-11"}, 12, [9, 10, 11]),
    ]
    for variables, count, served in rows:
        names = {name if "_URL" in name else f"TRACEJUDGE_{name.upper()}": text for name, text in variables.items()}
        settings = load(names)
        assert (settings.partition_count, [*settings.served]) == (count, served), variables
    assert load(CLUSTER, None, {"served_partitions": "2"}).served == (2,)


def test_a_whole_list_of_rules_replaces_another() -> None:
    write(RULE + RULE.replace("all", "other"))
    own = json.dumps([{"name": "mine", "judges": ["correctness"]}])
    assert [rule.name for rule in load({"TRACEJUDGE_RULES": own}).rules] == ["mine"]


def test_the_file_is_the_argument_before_the_variable_before_the_folder() -> None:
    for name in (FILE, "variable.toml", "argument.toml"):
        write(f'prefix = "{name}"', name)
    variable = {"TRACEJUDGE_CONFIG": "variable.toml"}
    assert load({}).prefix == FILE
    assert load(variable).prefix == "variable.toml"
    assert load(variable, "argument.toml").prefix == "argument.toml"


def test_an_empty_variable_is_an_unset_one() -> None:
    write(EXAMPLE)
    assert load({f"TRACEJUDGE_{key.upper()}": "" for key in (*KEYS, "config")}) == load({})


def test_the_environment_of_the_process_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEJUDGE_MAX_DEAD", "7")
    assert load({}).max_dead == 100_000
    assert load(os.environ).max_dead == 7


VARIABLES: Variables = {
    "redis_url": ("rediss://user:pw@host:6380/2", "rediss://user:pw@host:6380/2"),
    "partitions": ("1", 1),
    "served_partitions": ("0", "0"),
    "broker_url": ("amqp://host", "amqp://host"),
    "prefix": ("mine", "mine"),
    "metrics_host": ("0.0.0.0", "0.0.0.0"),  # noqa: S104 - what containers set
    "metrics_port": ("0", 0),
    "metrics_token_env": ("METRICS_TOKEN", "METRICS_TOKEN"),
    "metrics_token_file": ("/run/token", "/run/token"),
    "metrics_user": ("prometheus", "prometheus"),
    "metrics_password_env": ("METRICS_PASSWORD", "METRICS_PASSWORD"),
    "metrics_password_file": ("/run/password", "/run/password"),
    "metrics_tls_cert": ("/run/tls.crt", "/run/tls.crt"),
    "metrics_tls_key": ("/run/tls.key", "/run/tls.key"),
    "otlp_endpoint": ("http://collector:4318", "http://collector:4318"),
    "proxy": ("http://proxy:3128", "http://proxy:3128"),
    "export_explanations": ("true", True),
    "sampling_key": ("other", "other"),
    "user_key": ("other", "other"),
    "user_key_file": ("/run/user-key", "/run/user-key"),
    "user_keys_former": ("first,second", ("first", "second")),
    "retention": ("12h", 43_200.0),
    "max_stream": ("1000", 1000),
    "max_stream_bytes": ("2GiB", 2 << 30),
    "max_trace_bytes": ("64KiB", 64 << 10),
    "max_outbox": ("5", 5),
    "max_outbox_bytes": ("1MiB", 1 << 20),
    "max_waiting_bytes": ("10MiB", 10 << 20),
    "give_up_after": ("90m", 5400.0),
    "max_dead": ("1000", 1000),
    "max_dead_bytes": ("1MiB", 1 << 20),
    "dead_retention": ("3d", 259_200.0),
    "evaluation_timeout": ("5m", 300.0),
    "keep_labelled": ("false", False),
    "max_labelled_bytes": ("64MiB", 64 << 20),
    "grace_s": ("2.5", 2.5),
    "shift_s": ("3s", 3.0),
    "task_events": ("true", True),
    "batch_size": ("4", 4),
    "series_labels": ("name, release", ("name", "release")),
    "max_services": ("3", 3),
    "log_level": ("debug", "debug"),
    "log_verdicts": ("failed", "failed"),
    "roles": ("ingest,export", ("ingest", "export")),
    "redact": ('{"builtin": true, "patterns": ["a1"]}', Redact(builtin=True, patterns=("a1",))),
    "monitor": ('{"max_series": 7}', Monitor(max_series=7)),
    "receivers": (
        '{"mine": {"kind": "otlp", "url": "http://host", "headers": {"x-team": {"env": "TEAM"}}}}',
        {"mine": OtlpSettings(url="http://host", headers={"x-team": HeaderSource(env="TEAM")})},
    ),
    "models": (
        (
            '{"default": {"base_url": "http://host/v1", "model": "m", "price": {"input": 1, "output": 2}}, '
            '"cheap": {"provider": "decisions", "base_url": "http://host/v1", "model": "c"}}'
        ),
        {
            "default": ModelSettings(base_url="http://host/v1", model="m", price=Price(1.0, 2.0)),
            "cheap": ModelSettings(provider="decisions", base_url="http://host/v1", model="c"),
        },
    ),
    "calibrations": (
        '[{"judge": "groundedness", "model": "c", "threshold": 0.6}]',
        (JudgeCalibration(judge="groundedness", model="c", threshold=0.6),),
    ),
    "judges": ('{"safety": {}}', {"safety": {}}),
    "judges_folder": (".", "."),
    "judge_duplicates": ("true", True),
    "rules": (
        '[{"name": "r", "judges": ["safety"], "rate": 0.5, "where": {"has": ["input"]}}]',
        (Rule(name="r", judges=("safety",), rate=0.5, where=Where(has=("input",))),),
    ),
}


GO_TOGETHER: Mapping[str, str] = {
    "metrics_user": "metrics_password_file",
    "metrics_password_env": "metrics_user",
    "metrics_password_file": "metrics_user",
    "metrics_tls_cert": "metrics_tls_key",
    "metrics_tls_key": "metrics_tls_cert",
    "calibrations": "models",
}
"""Keys that are refused by themselves, and what goes with them."""


def test_every_key_of_core_and_base_has_a_row() -> None:
    of_base, of_features = keys_of(features_in("base")), keys_of(features_in("features"))
    assert VARIABLES.keys() == set(KEYS) - (of_features - of_base)


@each_case("key", VARIABLES)
def test_every_key_has_its_variable(key: str) -> None:
    check_variable(key, VARIABLES, GO_TOGETHER.get(key))


def test_unknown_variables_name_the_close_match_and_known_ones_do_not() -> None:
    """Known are those of the worker, of the SDK, those that a setting names, and those that Kubernetes sets."""
    write(MODEL + 'api_key_env = "TRACEJUDGE_OPENAI_KEY"\n')
    names = {f"TRACEJUDGE_{key.upper()}" for key in KEYS} | SDK_VARIABLES
    names |= {"TRACEJUDGE_CONFIG", "TRACEJUDGE_OPENAI_KEY", "OTHER_PREFX"}
    names |= {"TRACEJUDGE_SERVICE_HOST", "TRACEJUDGE_PORT_9808_TCP_ADDR", "TRACEJUDGE_GATEWAY_SERVICE_PORT_HTTP"}
    celery = ("CELERY_BROKER_READ_URL", "CELERY_RESULT_BACKEND", "CELERY_CONFIG_MODULE", "CELERY_LOG_LEVEL")
    variables = (*names, *celery, "TRACEJUDGE_REDIS_ULR", "TRACEJUDGE_XYZZY", "TRACEJUDGE_MONITOR_SEGMENTS")
    variables += ("TRACEJUDGE_OTHER_PORT",)
    findings = unknown_variables(load({}), dict.fromkeys(variables, "x") | {"CELERY_BROKER_URL": ""})
    assert [str(finding) for finding in findings] == [
        "CELERY_BROKER_READ_URL: is for another program with Celery, and is ignored; take it out of this environment",
        "CELERY_CONFIG_MODULE: is for another program with Celery, and is ignored; take it out of this environment",
        "CELERY_RESULT_BACKEND: is for another program with Celery, and is ignored; take it out of this environment",
        "TRACEJUDGE_MONITOR_SEGMENTS: is no setting; set segments in [monitor], or in JSON in TRACEJUDGE_MONITOR",
        "TRACEJUDGE_OTHER_PORT: is no setting; did you mean TRACEJUDGE_METRICS_PORT?",
        "TRACEJUDGE_REDIS_ULR: is no setting; did you mean TRACEJUDGE_REDIS_URL?",
        "TRACEJUDGE_XYZZY: is no setting, and nothing reads it; take it out",
    ]


@each_case("link", ["tcp://10.0.0.7:9808", "udp://[fd00::7]:53"])
def test_a_link_of_kubernetes_to_a_service_is_no_setting(link: str) -> None:
    """A service `tracejudge-metrics` sets TRACEJUDGE_METRICS_PORT in each pod; a setting is still read."""
    variables = {"TRACEJUDGE_METRICS_PORT": link, "TRACEJUDGE_METRICS_SERVICE_PORT": "9808", "TRACEJUDGE_PORT": link}
    settings = load(variables)
    assert settings.metrics_port == Settings().metrics_port
    assert place_of("metrics_port", variables, None) == "defaults"
    (line,) = map(str, unknown_variables(settings, variables))
    assert "link of Kubernetes to a service, and is ignored; set enableServiceLinks: false" in line
    assert load({**variables, "TRACEJUDGE_METRICS_PORT": "9900"}).metrics_port == 9900
    with pytest.raises(SettingsError, match="TRACEJUDGE_METRICS_PORT: metrics_port: must be a whole number"):
        load({"TRACEJUDGE_METRICS_PORT": "http://10.0.0.7:9808"})
    numbers = dict.fromkeys(("max_items", "max_bytes", "max_stream", "exit_timeout_s"), 1)
    sdk = load_settings(environ={**variables, "TRACEJUDGE_SERVICE": "s", "TRACEJUDGE_SERVICE_PORT": link}, **numbers)
    assert sdk.service == "s"


def test_the_sdk_s_variables_are_those_that_it_reads() -> None:
    class Recording(dict[str, str]):
        def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
            read.add(key)
            return super().get(key, default)  # type: ignore[arg-type]

    read: set[str] = set()
    numbers = dict.fromkeys(("max_items", "max_bytes", "max_stream", "exit_timeout_s"), 1)
    load_settings(environ=Recording({"TRACEJUDGE_SERVICE": "s"}), **numbers)
    assert read | {"TRACEJUDGE_DIALECTS"} == SDK_VARIABLES  # which the exporter reads


def test_the_configuration_hash_covers_the_settings_that_processes_share() -> None:
    """Another role, port or password is the same configuration; any other setting is not."""
    plain = Settings().config_hash
    same = {
        "roles": ("judge",),
        "metrics_port": 1,
        "redis_url": "redis://u:pw@h/1",
        "user_key": "k",
        "log_level": "debug",
    }
    assert Settings.from_keys(**same).config_hash == plain
    left_out = {"metrics_host", "broker_url", "otlp_endpoint", "proxy", "user_keys_former", "log_verdicts", *same}
    left_out |= {"served_partitions", "judges_folder"}
    hashes = {
        key: Settings.from_keys(**{key: value}).config_hash
        for key, (_, value) in VARIABLES.items()
        if key not in left_out
    }
    assert len({plain, *hashes.values()}) == len(hashes) + 1
    assert all(re.fullmatch(r"[0-9a-f]{8}", digest) for digest in hashes.values())
    assert load({"TRACEJUDGE_RETENTION": "12h"}).config_hash == hashes["retention"], "wherever it is set"


DURATIONS: Mapping[str, float] = {"90": 90, "15s": 15, "15m": 900, "24h": 86_400, "1.5 d": 129_600, " 2H ": 7200}
SIZES: Mapping[str, int] = {"1048576": 1 << 20, "64KiB": 64 << 10, "64mib": 64 << 20, "1GiB": 1 << 30, "1.5 KiB": 1536}


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_durations_are_written_with_a_unit_or_in_seconds(text: str, seconds: float) -> None:
    write(f'retention = "{text}"\ngive_up_after = 90')
    settings = load({"TRACEJUDGE_GRACE_S": text})
    assert (settings.retention, settings.grace_s, settings.give_up_after) == (seconds, seconds, 90.0)


@pytest.mark.parametrize(("text", "size"), SIZES.items())
def test_sizes_are_written_with_a_unit_or_in_bytes(text: str, size: int) -> None:
    write(f'max_stream_bytes = "{text}"\nmax_waiting_bytes = 90')
    settings = load({"TRACEJUDGE_MAX_TRACE_BYTES": text})
    assert (settings.max_stream_bytes, settings.max_trace_bytes, settings.max_waiting_bytes) == (size, size, 90)


GOOD = {
    "two models of one name and endpoint": MODEL + MODEL.replace("default", "b").replace("/v1", "/v1/"),
    "two endpoints with a label": MODEL + '[models.b]\nbase_url = "https://b/v1"\nmodel = "m"\nlabel = "m at b"\n',
    "a model that is not called default": MODEL.replace("default", "a") + RULE + 'model = "a"',
    "the public API of anthropic": "[models.default]\nprovider = 'anthropic'\nmodel = 'm'\napi_key_env = 'KEY'",
    "a socket": 'redis_url = "unix:///run/redis.sock"',
    "a judge without settings": "[judges.safety]",
    "a judge with settings": "[judges.relevance_truth_completeness]\nreasoning = false",
    "one rule as a string": "[judges.guidelines]\nguidelines = 'Be polite.'",
}


@each_case("text", GOOD.values(), ids=GOOD.keys())
def test_a_valid_configuration_is_accepted(text: str) -> None:
    write(text)
    load({})


# --- mistakes ---

KNOWN = ", ".join([*KEYS][:30]) + ", …"
HAS = (
    "context, expected_facts, expected_response, expected_tools, guidelines, input, messages, spans, tool_calls, tools"
)
RANGES = "must be numbers and ranges, as 0-3 or 0,2"
CLUSTER_FORM = "redis+cluster://user:password@host1:6379,host2:6379"
URL_FORM = (
    "redis://user:password@host:6379/0, rediss://…, redis+cluster://…, redis+sentinel://… or unix:///path/to/socket"
)
NO_HOST = (
    f"tracejudge.toml: redis_url: has no valid host and port: {URL_FORM}; percent-encode special characters in the"
    " password"
)
OTHER_MODEL = '[models.other]\nbase_url = "https://elsewhere/v1"\nmodel = "m"\n'


def in_model(line: str, message: str, model: str = LEXICAL) -> Mistake:
    return in_file(f"{model}{line}\n", f"models.default{message}")


def in_variable(name: str, text: str, message: str) -> Mistake:
    return Mistake(f"TRACEJUDGE_{name}: {message}", None, {f"TRACEJUDGE_{name}": text})


MISTAKES: Mapping[str, Mistake] = {
    # the file
    "not TOML": in_file("a = = b", "is not TOML: Invalid value (at line 1, column 5); fix it there"),
    "not UTF-8": in_file(b'prefix = "\xff"', "is not UTF-8; save it as UTF-8"),
    "no such file": Mistake(
        "gone.toml: cannot be read (No such file or directory); check --config or TRACEJUDGE_CONFIG",
        variables={"TRACEJUDGE_CONFIG": "gone.toml"},
    ),
    "a folder": Mistake(
        "/: cannot be read (Is a directory); check --config or TRACEJUDGE_CONFIG", variables={"TRACEJUDGE_CONFIG": "/"}
    ),
    # keys
    "unknown key": in_file('redis_ur = "x"', "redis_ur: unknown key; did you mean redis_url?"),
    "unknown key, unlike any": in_file("zzz = 1", f"zzz: unknown key; known are {KNOWN}"),
    "unknown key over two lines": in_file('"redis\\nurl" = 1', "redis?url: unknown key; did you mean redis_url?"),
    "unknown key of a model": in_model("max_inflight = 1", ".max_inflight: unknown key; did you mean max_in_flight?"),
    "unknown key of a price": in_model(
        "price = { input = 1, outptu = 2 }", ".price.outptu: unknown key; did you mean output?"
    ),
    "unknown key of a rule": in_rule("raet = 1", ".raet: unknown key; did you mean rate?"),
    "unknown key of where": in_rule("where = { servce = 'x' }", ".where.servce: unknown key; did you mean service?"),
    "unknown key of a judge": in_file(
        "[judges.equivalence]\nreasoning = true",
        "judges.equivalence.reasoning: unknown key; this judge has no settings, take it out",
    ),
    "unknown key of a judge with settings": in_file(
        "[judges.faithfulness]\npas_at = 3", "judges.faithfulness.pas_at: unknown key; did you mean pass_at?"
    ),
    "segment that nothing has": in_file(
        "[monitor]\nsegments = ['tag.plan']",
        "monitor.segments[0]: must be one of name, model, release, prompt_version, or tags.NAME",
    ),
    "setting of a judge off its scale": in_file(
        "[judges.faithfulness]\npass_at = 6", "judges.faithfulness.pass_at: must be a whole number from 1 to 5"
    ),
    "setting of a judge of another type": in_file(
        "[judges.ragbench]\nlengths = 'long'", "judges.ragbench.lengths: must be true or false"
    ),
    "setting of a judge of neither type": in_file(
        "[judges.guidelines]\nguidelines = 3",
        'judges.guidelines.guidelines: must be a list, as ["…"] or a string that is not blank',
    ),
    "item of a setting of a judge": in_file(
        "[judges.guidelines]\nguidelines = ['']", "judges.guidelines.guidelines[0]: must be a string that is not blank"
    ),
    "settings of an unknown judge": in_file(
        "[judges.safty]", "judges.safty: there is no such judge; did you mean safety?"
    ),
    # wrong types
    "string for a number": in_file("metrics_port = 'high'", "metrics_port: must be a whole number from 0 to 65535"),
    "part of a port": in_file("metrics_port = 1.5", "metrics_port: must be a whole number from 0 to 65535"),
    "truth for a number": in_file("max_dead = true", "max_dead: must be a whole number of at least 1"),
    "number for a string": in_file("redis_url = 6379", "redis_url: must be a string"),
    "partitions without a cluster": in_file(
        "partitions = 2", "partitions: needs a cluster; set redis_url to redis+cluster://host:6379, or leave it out"
    ),
    "too many partitions": in_file("partitions = 65", "partitions: must be a whole number from 1 to 64"),
    "a cluster as the broker": in_file(
        'broker_url = "redis+cluster://a"', "broker_url: must be a URL, as amqp://host or redis://host:6379/0"
    ),
    "a database of a cluster": in_file(
        'redis_url = "redis+cluster://a/1"',
        f"redis_url: names a database, and a cluster has only number 0: {CLUSTER_FORM}",
    ),
    "a node without a host": in_file(
        f'redis_url = "redis+cluster://:{SECRET}@a,:1"',
        f"redis_url: has a node without a valid host and port: {CLUSTER_FORM}; percent-encode special characters in the"
        " password",
    ),
    "a partition that is not there": Mistake(
        "--partitions: served_partitions: there is no partition 8; the last one is 7",
        variables=CLUSTER,
        arguments={"served_partitions": "1,7-8"},
    ),
    "a range that ends before it begins": in_file(
        'served_partitions = "3-1"',
        "served_partitions: has a range that ends before it begins; write the smaller number first",
    ),
    "no range": in_file('served_partitions = "0-"', f"served_partitions: {RANGES}"),
    "a number that is too long": in_file('served_partitions = "0-99999999999"', f"served_partitions: {RANGES}"),
    "a list of partitions": in_file("served_partitions = [0]", "served_partitions: must be a string"),
    "list for a string": in_file("metrics_host = ['a']", "metrics_host: must be a string"),
    "string for a truth": in_file("export_explanations = 'often'", "export_explanations: must be true or false"),
    "string for a list": in_file("series_labels = 'name'", 'series_labels: must be a list, as ["…"]'),
    "models as a list": in_file("models = [1]", "models: must be tables, each as [models.NAME]"),
    "model as a string": in_file("models.default = 'lexical'", "models: must be tables, each as [models.NAME]"),
    "judges as a list": in_file("judges = ['safety']", "judges: must be tables, each as [judges.NAME]"),
    "rules as a table": in_file("[rules.all]", "rules: must be tables, each under [[rules]]"),
    "rule as a string": in_file("rules = ['safety']", "rules: must be tables, each under [[rules]]"),
    "where as a string": in_rule(
        "where = 'prod'", ".where: must be a table with some of service, environment, name, release, model, has"
    ),
    "pattern as a number": in_rule("where = { service = 7 }", ".where.service: must be a string"),
    # values
    "port": in_file("metrics_port = 65536", "metrics_port: must be a whole number from 0 to 65535"),
    "none": in_file("batch_size = 0", "batch_size: must be a whole number from 1 to 1000"),
    "prefix": in_file("prefix = 'a:b'", "prefix: must be a string of letters, digits, '_', '-' and '.'"),
    "prefix with a line end": in_file(
        'prefix = "a\\n"', "prefix: must be a string of letters, digits, '_', '-' and '.'"
    ),
    "long sampling key": in_file(
        f"sampling_key = '{'k' * 65}'", "sampling_key: must be a string of at most 64 characters"
    ),
    "sampling key of many bytes": in_file(
        f"sampling_key = '{'é' * 33}'", "sampling_key: must be of at most 64 bytes; shorten it"
    ),
    "empty user key": in_file("user_key = ''", "user_key: must be a string of 1 to 64 characters"),
    "user key of many bytes": in_file(f"user_key = '{'é' * 33}'", "user_key: must be of at most 64 bytes; shorten it"),
    "former key of many bytes": in_file(
        f"user_keys_former = ['{'é' * 33}']", "user_keys_former: must be of at most 64 bytes; shorten it"
    ),
    "user key twice": in_file(
        "user_key = 'a'\nuser_key_file = 'b'",
        "user_key_file: goes in place of user_key, not beside it; take one of them out",
    ),
    "duration": in_file("retention = '1 week'", "retention: write an amount such as 90, 15m or 24h"),
    "no duration": in_file("retention = 0", "retention: must be a number above 0 and at most 315360000"),
    "endless duration": in_file("grace_s = inf", "grace_s: must be a number above 0 and at most 315360000"),
    "no number": in_file("give_up_after = nan", "give_up_after: must be a number above 0 and at most 315360000"),
    "size": in_file("max_trace_bytes = '1GB'", "max_trace_bytes: write an amount such as 1048576, 64MiB or 1GiB"),
    "huge size": in_file(
        "max_trace_bytes = '999999999999999999GiB'",
        "max_trace_bytes: must be a whole number from 1 to 1125899906842624",
    ),
    "log level": in_file("log_level = 'loud'", "log_level: must be one of debug, error, info, warning"),
    "role": in_file("roles = ['ingest', 'jduge']", "roles[1]: must be one of export, ingest, judge, monitor"),
    "no role": in_file("roles = []", "roles: is empty; name at least one of ingest, judge, export, monitor"),
    "series label": in_file("series_labels = ['user_id']", "series_labels[0]: must be one of model, name, release"),
    "series label twice": in_file(
        "series_labels = ['name', 'name']", "series_labels: names a label twice; name each once"
    ),
    # addresses
    "scheme of redis": in_file(
        f"redis_url = 'http://:{SECRET}@host'", f"redis_url: must begin with redis://, rediss:// or unix://: {URL_FORM}"
    ),
    "password with a slash": Mistake(NO_HOST, f"redis_url = 'redis://:{SECRET}/x@host:6379/0'"),
    "password in a bracket": Mistake(NO_HOST, f"redis_url = 'redis://[{SECRET}'"),
    "port of redis": Mistake(NO_HOST, f"redis_url = 'redis://host:{SECRET}'"),
    "no host of redis": Mistake(NO_HOST, "redis_url = 'redis://'"),
    "broker": in_file("broker_url = 'rabbit'", "broker_url: must be a URL, as amqp://host or redis://host:6379/0"),
    "broker whose password has a slash": in_file("broker_url = 'amqp://user:12/34@host//'", f"broker_url: {QUOTE}"),
    "broker whose password has a hash": in_file("broker_url = 'amqp://user:12#34@host//'", f"broker_url: {QUOTE}"),
    "second broker": in_file("broker_url = 'amqp://u:p@a;amqp://user:12/34@b'", f"broker_url: {QUOTE}"),
    "receiver whose password has a slash": in_file(
        "otlp_endpoint = 'http://user:12/34@host'", f"otlp_endpoint: {QUOTE}"
    ),
    "receiver whose password has a hash": in_file(
        "otlp_endpoint = 'http://user:12#34@host'", f"otlp_endpoint: {QUOTE}"
    ),
    "scheme of the receiver": in_file(
        "otlp_endpoint = 'localhost:4318'", "otlp_endpoint: has no scheme; write http:// or https:// before the host"
    ),
    "no host of the receiver": in_file(
        "otlp_endpoint = 'http://'", "otlp_endpoint: must be http://host:port or https://host:port"
    ),
    "port of the receiver": in_file(f"otlp_endpoint = 'http://user:{SECRET}/x@host'", f"otlp_endpoint: {QUOTE}"),
    # models
    "provider": in_model("", f".provider: must be one of {KNOWN_PROVIDERS}", LEXICAL.replace("xic", "ixc")),
    "no address": in_file(
        "[models.default]\nmodel = 'm'", 'models.default.base_url: is missing; set it, as "https://host/v1"'
    ),
    "no model": in_file(
        "[models.default]\nbase_url = 'https://host/v1'", "models.default.model: is missing; name the endpoint's model"
    ),
    "scheme of the endpoint": in_model(
        "", '.base_url: must be http:// or https:// and a host, as "https://host/v1"', MODEL.replace("https", "ftp")
    ),
    "no host of the endpoint": in_model(
        "", '.base_url: must be http:// or https:// and a host, as "https://host/v1"', MODEL.replace("host", "")
    ),
    "key in the address": in_model(
        "",
        '.base_url: must be http:// or https:// and a host, as "https://host/v1"',
        MODEL.replace("host", f"user:{SECRET}/x@host"),
    ),
    "key for a variable": in_model(f"api_key_env = '{SECRET}'", f".api_key_env: {NAME_THE_VARIABLE}", MODEL),
    "header for a variable": in_model(
        f"headers = {{ x-a = {{ env = '{SECRET}' }} }}",
        f".headers.x-a.env: {NAME_THE_VARIABLE.replace('API_KEY', 'X_A')}",
        MODEL,
    ),
    "header without a place": in_model("headers = { x-a = {} }", ".headers.x-a: set env or file, one of them", MODEL),
    "key under another name": in_model(
        f"api_key = '{SECRET}'", ".api_key: unknown key; did you mean api_key_env?", MODEL
    ),
    "two endpoints of one model": in_file(
        MODEL + OTHER_MODEL, "models.other.label: another endpoint serves 'm' too; label each of them"
    ),
    "no slots": in_model("max_in_flight = 0", ".max_in_flight: must be at least 1"),
    "no tokens": in_model("max_input_tokens = 0", ".max_input_tokens: must be at least 1"),
    "no time": in_model("timeout_s = 0", ".timeout_s: must be more than 0"),
    "tokens of an answer": in_model(
        "max_output_tokens = 100", ".max_output_tokens: goes with the provider openai or anthropic alone; take it out"
    ),
    "anthropic without a key": in_file(
        "[models.default]\nprovider = 'anthropic'\nmodel = 'm'",
        "models.default.api_key_env: https://api.anthropic.com requires a key; name the variable that holds it,"
        " as ANTHROPIC_API_KEY",
    ),
    "half a price": in_model("price = { input = 1 }", f".price.output: is missing; it must be a number, {PRICE}"),
    "price in one number": in_model(
        "price = 0.4", f".price: must be a table with some of input, output, cached_input, {PRICE}"
    ),
    "price": in_model(
        "price = { input = -1, output = 1 }", f".price: must be USD per million tokens, 0 or more, {PRICE}"
    ),
    "endless price": in_model(
        "price = { input = 1, output = inf }", f".price: must be USD per million tokens, 0 or more, {PRICE}"
    ),
    "model name over two lines": in_file(
        '[models."a\\nb"]\nprovider = "x"', f"models.a?b.provider: must be one of {KNOWN_PROVIDERS}"
    ),
    "no default model": in_file(
        MODEL.replace("default", "a"),
        "models: none is the default; call one default, or write [[rules]] with the model of each",
    ),
    # rules
    "rate above one": in_rule("rate = 1.5", ".rate: must be a number from 0 to 1; write 5 % as 0.05"),
    "rate below zero": in_rule("rate = -0.1", ".rate: must be a number from 0 to 1; write 5 % as 0.05"),
    "rate that is no number": in_rule("rate = nan", ".rate: must be a number from 0 to 1; write 5 % as 0.05"),
    "rate in percent": in_rule("rate = '5%'", ".rate: must be a number from 0 to 1; write 5 % as 0.05"),
    "rate in words": in_rule("rate = 'all'", ".rate: must be a number from 0 to 1; write 5 % as 0.05"),
    "always": in_rule("always = ['errors']", ".always[0]: must be one of error, negative_feedback, slow"),
    "has": in_rule("where = { has = ['contxt'] }", f".where.has[0]: must be one of {HAS}"),
    "no name": in_file("[[rules]]\njudges = ['safety']", "rules[0].name: is missing; it must be a string"),
    "empty name": in_file(RULE.replace("all", ""), "rules[0].name: is empty; give the rule a name"),
    "a name twice": in_file(RULE + RULE, "rules[1].name: 'all' is taken by another rule; give each its own"),
    "no judges": in_file('[[rules]]\nname = "all"', 'rules[0].judges: is missing; it must be a list, as ["…"]'),
    "empty judges": in_file(
        RULE.replace('"safety"', ""), "rules[0].judges: is empty; name at least one judge, or take the rule out"
    ),
    "unknown judge": in_file(
        RULE + RULE.replace("all", "b").replace("safety", "safty"),
        "rules[1].judges: there is no judge 'safty'; did you mean safety? (rule 'b')",
    ),
    "rate of the second rule": in_file(
        f"{RULE}{RULE.replace('all', 'b')}rate = 2\n",
        "rules[1].rate: must be a number from 0 to 1; write 5 % as 0.05 (rule 'b')",
    ),
    "no default model for a rule": in_file(
        MODEL.replace("default", "gpt") + RULE,
        'rules[0].model: there is no [models.default]; rename [models.gpt], or write model = "gpt" in the rule',
    ),
    "unknown judge, unlike any": in_file(
        RULE.replace("safety", "zzz"),
        f"rules[0].judges: there is no judge 'zzz'; known are {', '.join(sorted(catalogue()))}",
    ),
    "a judge of conversations": in_file(
        RULE.replace("safety", "user_frustration"),
        "rules[0].judges: 'user_frustration' judges a session, not a trace; "
        'set unit = "session", and name only such judges in the rule',
    ),
    "unknown unit": in_rule("unit = 'span'", ".unit: must be one of session, trace"),
    "unknown model": in_rule("model = 'defualt'", ".model: there is no [models.defualt]; did you mean default?"),
    "unknown model, unlike any": in_rule("model = 'gpt'", ".model: there is no [models.gpt]; known are default"),
    # variables
    "rules that are no JSON": in_variable("RULES", "{", "is not JSON; write in JSON what the file holds under rules"),
    "models nested without end": in_variable(
        "MODELS", "[" * 100_000, "is not JSON; write in JSON what the file holds under models"
    ),
    "rules in one table": in_variable("RULES", '{"name": "r"}', "rules: must be tables, each under [[rules]]"),
    "rule in a variable": in_variable(
        "RULES",
        '[{"name": "r", "judges": ["safety"], "rate": 2}]',
        "rules[0].rate: must be a number from 0 to 1; write 5 % as 0.05",
    ),
    "model in a variable": in_variable(
        "MODELS",
        f'{{"default": {{"api_key": "{SECRET}"}}}}',
        "models.default.api_key: unknown key; did you mean api_key_env?",
    ),
    "truth in a variable": in_variable("EXPORT_EXPLANATIONS", "yes", "export_explanations: must be true or false"),
    "role in a variable": in_variable(
        "ROLES", "ingest,jduge", "roles[1]: must be one of export, ingest, judge, monitor"
    ),
    "only commas": in_variable("ROLES", ",", "roles: is empty; name at least one of ingest, judge, export, monitor"),
    "bytes in a variable": in_variable("SAMPLING_KEY", "\udcff", "is not UTF-8; set it to UTF-8"),
    "duration in a variable": in_variable("RETENTION", "soon", "retention: write an amount such as 90, 15m or 24h"),
    # arguments
    "argument": Mistake(
        "--metrics-port: metrics_port: must be a whole number from 0 to 65535", arguments={"metrics_port": -1}
    ),
    "roles as arguments": Mistake(
        "--roles: roles[0]: must be one of export, ingest, judge, monitor", arguments={"roles": ["judges"]}
    ),
    "address as an argument": Mistake(
        f"--redis-url: redis_url: must begin with redis://, rediss:// or unix://: {URL_FORM}",
        arguments={"redis_url": f"http://{SECRET}@host"},
    ),
}


@each_case("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_with_place_key_and_fix(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_mistake(mistake)


def test_a_worker_on_a_cluster_needs_a_broker_and_a_command_none() -> None:
    variables = {"TRACEJUDGE_REDIS_URL": "redis+cluster://a"}
    assert load(variables).broker_url is None
    with pytest.raises(SettingsError) as caught:
        load(variables, needs_broker=True)
    assert str(caught.value) == (
        "defaults: broker_url: is required with a cluster, which Celery cannot use as its broker; set it to another"
        ' server, as broker_url = "amqp://rabbitmq" or "redis://host:6379/0"'
    )


def test_an_error_names_the_source_that_set_the_value() -> None:
    write("max_dead = 0", "mine.toml")
    variable = {"TRACEJUDGE_MAX_DEAD": "0"}
    for variables, arguments, place in (
        ({}, {}, "mine.toml"),
        (variable, {}, "TRACEJUDGE_MAX_DEAD"),
        (variable, {"max_dead": 0}, "--max-dead"),
    ):
        with pytest.raises(SettingsError) as caught:
            load(variables, "mine.toml", arguments)
        assert str(caught.value) == f"{place}: max_dead: must be a whole number of at least 1"


@pytest.mark.parametrize("url", ["redis://:pa#ssw0rd", "foo://host", "redis://host:none/0"])
def test_a_broker_that_celery_could_not_use_is_told_in_one_line_without_the_password(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({"TRACEJUDGE_BROKER_URL": url})
    mend = "broker_url: must be a URL, as amqp://host or redis://host:6379/0"
    assert str(caught.value) == f"TRACEJUDGE_BROKER_URL: {mend}"


def test_a_proxy_that_cannot_be_used_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the setting's nor the environment's is quoted: it may hold a password."""
    for proxy in ("socks5://user:s3cret@p:1", "p:3128", "http://"):
        with pytest.raises(SettingsError, match="proxy: must be http://host:port, or none") as caught:
            load({"TRACEJUDGE_PROXY": proxy})
        assert "s3cret" not in str(caught.value), proxy
    monkeypatch.setenv("HTTP_PROXY", "socks5://user:s3cret@p:1")
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SettingsError, match="otlp_endpoint: its proxy is not http") as caught:
        load({"TRACEJUDGE_OTLP_ENDPOINT": "http://collector:4318"})
    assert "s3cret" not in str(caught.value)
    assert load({"TRACEJUDGE_OTLP_ENDPOINT": "http://collector:4318", "TRACEJUDGE_PROXY": "none"}).proxy == "none"
