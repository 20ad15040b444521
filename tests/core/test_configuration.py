"""The settings: what applies if nothing is set, what wins, and one clear line for every mistake.

The mistakes of core and base, and their lines, stand in data/mistakes.json; UPDATE_GOLDEN=1 writes the lines anew.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.configuration import FILE, MODEL, RULE, SECRET, Variables, check_variable, features_in, keys_of
from support.tables import as_bytes, expand, read_table

from judges.core.model import HeaderSource, ModelSettings, Price
from judges.models.registry import PROVIDERS
from judges.registry import catalogue, load_judges
from judges.requests.redaction import Redact
from tracejudge import Trace
from tracejudge.settings import VARIABLES as SDK_VARIABLES
from tracejudge.settings import load_settings
from worker.base.delivery.settings import OtlpSettings
from worker.base.monitor.feature import Monitor
from worker.core.config.graders import Graders
from worker.core.config.loading import load
from worker.core.config.reading import key_types, place_of, unknown_variables
from worker.core.config.settings import JudgeCalibration, Rule, Settings, SettingsError, Where
from worker.core.selection.sampling import Rules, Sampler

KEYS = tuple(key_types())
NUMBERS = dict.fromkeys(("max_items", "max_bytes", "max_stream", "exit_timeout_s"), 1)
CLUSTER = {"TRACEJUDGE_REDIS_URL": "redis+cluster://a,b:7000", "TRACEJUDGE_BROKER_URL": "amqp://host"}
COMPUTED = {
    "«keys»": ", ".join([*KEYS][:30]) + ", …",
    "«providers»": f"{', '.join(sorted(PROVIDERS))}",
    "«judges»": ", ".join(sorted(catalogue())),
}
PLAIN = read_table(__file__, "variables")
VARIABLES: Variables = {
    **{key: (text, tuple(value) if isinstance(value, list) else value) for key, (text, value) in PLAIN.items()},
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
EXAMPLE = (Path(__file__).parent / "data" / "example.toml").read_text(encoding="utf-8")
DURATIONS = {"90": 90, "15s": 15, "15m": 900, "24h": 86_400, "1.5 d": 129_600, " 2H ": 7200}
SIZES = {"1048576": 1 << 20, "64KiB": 64 << 10, "64mib": 64 << 20, "1GiB": 1 << 30, "1.5 KiB": 1536}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in an empty folder: `tracejudge.toml` is read from the working directory."""
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = FILE) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(as_bytes(text))
    return name


def test_defaults_of_the_contract_hold_with_nothing_configured() -> None:
    table = read_table(__file__, "defaults")
    assert load({}) == Settings.from_keys(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()},
        models={"default": ModelSettings(provider="lexical")},
        judges={},
        redact=Redact(builtin=False, patterns=(), sign="[redacted]"),
        rules=(
            Rule(name="default, with context", judges=("groundedness",), where=Where(has=("context",))),
            Rule(name="default", judges=("relevance_to_query", "safety")),
        ),
    )
    for text in ("rules = []", "[models]"):
        write(text)
        assert load({}) == load({}, write("", "empty.toml")), "an empty list is as good as none"


def test_rules_and_models_have_defaults_and_the_example_of_the_contract_loads() -> None:
    write(RULE)
    rule = Rule(name="all", judges=("safety",), where=Where(), rate=1.0, always=(), model="default")
    assert load({}).rules == (rule,)
    write(MODEL)
    bounds = {"max_in_flight": 256, "max_input_tokens": 120_000}
    model = ModelSettings(provider="openai", base_url="https://host/v1", model="m", **bounds)
    assert load({}).models == {"default": model}
    write(EXAMPLE)
    names = {"base_url": "https://api.openai.com/v1", "model": "gpt-6-luna", "api_key_env": "OPENAI_API_KEY"}
    model = ModelSettings(provider="openai", **names, **bounds, price=Price(0.40, 1.60))
    rule = Rule(
        name="support answers stay grounded",
        where=Where(service="support-*", environment="prod", has=("context",)),
        judges=("groundedness",),
        rate=0.05,
        always=("error", "negative_feedback"),
    )
    assert load({}) == Settings(models={"default": model}, rules=(rule,))
    for text in read_table(__file__, "accepted").values():
        write(text)
        load({})


def test_settings_cannot_be_changed_and_name_queue_and_ledger() -> None:
    settings = Settings(prefix="mine", retention=3600.0)
    assert (settings.queue("gpt"), settings.ledger_ttl_s) == ("mine.judge.gpt", 3600 + 86_400)
    assert Settings().queue("code") == "tracejudge.judge.code"
    with pytest.raises(AttributeError):
        settings.metrics_port = 1  # type: ignore[misc]
    # Another role, port or password is the same configuration; any other setting is not.
    plain = Settings().config_hash
    same = {"roles": ("judge",), "metrics_port": 1, "redis_url": "redis://u:pw@h/1", "user_key": "k"}
    assert Settings.from_keys(**same, log_level="debug").config_hash == plain
    left_out = {"metrics_host", "broker_url", "otlp_endpoint", "proxy", "user_keys_former", "log_verdicts", *same}
    left_out |= {"served_partitions", "judges_folder", "log_level"}
    values = {key: value for key, (_, value) in VARIABLES.items() if key not in left_out}
    hashes = {key: Settings.from_keys(**{key: value}).config_hash for key, value in values.items()}
    assert len({plain, *hashes.values()}) == len(hashes) + 1
    assert all(re.fullmatch(r"[0-9a-f]{8}", digest) for digest in hashes.values())
    assert load({"TRACEJUDGE_RETENTION": "12h"}).config_hash == hashes["retention"], "wherever it is set"


def test_arguments_win_over_variables_and_these_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    write("max_services = 1\nbatch_size = 1\nmax_dead = 1\n")
    variables = {"TRACEJUDGE_BATCH_SIZE": "2", "TRACEJUDGE_MAX_DEAD": "2"}
    settings = load(variables, None, {"max_dead": 3, "redis_url": None})
    assert (settings.max_services, settings.batch_size, settings.max_dead) == (1, 2, 3)
    assert settings.redis_url == Settings().redis_url, "an argument that was not given changes nothing"
    write(RULE + RULE.replace("all", "other"))
    own = json.dumps([{"name": "mine", "judges": ["correctness"]}])
    assert [rule.name for rule in load({"TRACEJUDGE_RULES": own}).rules] == ["mine"], "a list is replaced as a whole"
    write(EXAMPLE)
    assert load({f"TRACEJUDGE_{key.upper()}": "" for key in (*KEYS, "config")}) == load({}), "empty is not set"
    for name in (FILE, "variable.toml", "argument.toml"):
        write(f'prefix = "{name}"', name)
    variable = {"TRACEJUDGE_CONFIG": "variable.toml"}
    prefixes = [load({}).prefix, load(variable).prefix, load(variable, "argument.toml").prefix]
    assert prefixes == [FILE, "variable.toml", "argument.toml"]
    monkeypatch.setenv("TRACEJUDGE_MAX_DEAD", "7")
    assert load({}).max_dead == 100_000, "the environment of the process is not read"
    assert load(os.environ).max_dead == 7
    # An error names the source that set the value.
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
    assert load({"TRACEJUDGE_REDIS_URL": "redis+cluster://a"}).broker_url is None, "a command needs none"
    with pytest.raises(SettingsError) as caught:
        load({"TRACEJUDGE_REDIS_URL": "redis+cluster://a"}, needs_broker=True)
    assert str(caught.value) == (
        "defaults: broker_url: is required with a cluster, which Celery cannot use as its broker; set it to another"
        ' server, as broker_url = "amqp://rabbitmq" or "redis://host:6379/0"'
    )


def test_every_key_of_core_and_base_has_its_variable() -> None:
    of_base, of_features = keys_of(features_in("base")), keys_of(features_in("features"))
    assert VARIABLES.keys() == set(KEYS) - (of_features - of_base)
    for key in VARIABLES:
        check_variable(key, VARIABLES, GO_TOGETHER.get(key))


def test_durations_and_sizes_are_written_with_a_unit_or_without() -> None:
    for text, seconds in DURATIONS.items():
        write(f'retention = "{text}"\ngive_up_after = 90')
        settings = load({"TRACEJUDGE_GRACE_S": text})
        assert (settings.retention, settings.grace_s, settings.give_up_after) == (seconds, seconds, 90.0), text
    for text, size in SIZES.items():
        write(f'max_stream_bytes = "{text}"\nmax_waiting_bytes = 90')
        settings = load({"TRACEJUDGE_MAX_TRACE_BYTES": text})
        assert (settings.max_stream_bytes, settings.max_trace_bytes, settings.max_waiting_bytes) == (size, size, 90)
    write('[redact]\nbuiltin = true\npatterns = ["ACME-\\\\d+"]\nsign = "[gone]"\n')
    assert load({}) == Settings(redact=Redact(builtin=True, patterns=(r"ACME-\d+",), sign="[gone]"))
    for word, builtin in (("1", True), ("On", True), ("true", True), ("0", False), ("off", False)):
        assert load({"TRACEJUDGE_REDACT": word}).redact == Redact(builtin=builtin), word


def test_a_judge_s_own_model_replaces_the_model_of_the_rule_under_its_egress() -> None:
    def chosen(*rules: Mapping[str, Any]) -> set[tuple[str, str]]:
        models = {name: {"provider": "lexical", "label": f"judge-{name}"} for name in ("default", "small", "large")}
        named = [{"name": f"rule {number}", **rule} for number, rule in enumerate(rules)]
        judges = {"kind": {"instructions": "Is {{ outputs }} kind?", "model": "large"}}
        tables = {"MODELS": models, "RULES": named, "JUDGES": judges}
        settings = load({f"TRACEJUDGE_{name}": json.dumps(value) for name, value in tables.items()})
        sampler = Sampler(Rules(settings, Graders(settings, load_judges(settings.judges))))
        return {choice[:2] for choice in sampler.sample(Trace(trace_id="1", service="shop", output="Yes.")).choices}

    both = {"judges": ["kind", "safety"], "model": "small"}
    assert chosen(both) == {("kind", "large"), ("safety", "small")}
    panel = "majority(judge-default,judge-small)"
    together = chosen({**both, "model": ["small", "default"], "combine": "majority"})
    assert together == {("kind", "large"), *(("safety", name) for name in ("small", "default", panel))}
    assert chosen(both, {"judges": ["safety"], "model": "small", "egress": ["small"]}) == {("safety", "small")}
    assert chosen({"judges": ["kind"], "model": "small", "egress": ["large"]}) == {("kind", "large")}


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
    foreign = "is for another program with Celery, and is ignored; take it out of this environment"
    assert [str(finding) for finding in findings] == [
        *(f"CELERY_{name}: {foreign}" for name in ("BROKER_READ_URL", "CONFIG_MODULE", "RESULT_BACKEND")),
        "TRACEJUDGE_MONITOR_SEGMENTS: is no setting; set segments in [monitor], or in JSON in TRACEJUDGE_MONITOR",
        "TRACEJUDGE_OTHER_PORT: is no setting; did you mean TRACEJUDGE_METRICS_PORT?",
        "TRACEJUDGE_REDIS_ULR: is no setting; did you mean TRACEJUDGE_REDIS_URL?",
        "TRACEJUDGE_XYZZY: is no setting, and nothing reads it; take it out",
    ]

    class Recording(dict[str, str]):
        def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
            read.add(key)
            return super().get(key, default)  # type: ignore[arg-type]

    read: set[str] = set()
    load_settings(environ=Recording({"TRACEJUDGE_SERVICE": "s"}), **NUMBERS)
    assert read | {"TRACEJUDGE_DIALECTS"} == SDK_VARIABLES  # which the exporter reads
    # A service `tracejudge-metrics` sets TRACEJUDGE_METRICS_PORT in each pod; a setting is still read.
    for link in ("tcp://10.0.0.7:9808", "udp://[fd00::7]:53"):
        variables = {"TRACEJUDGE_METRICS_PORT": link, "TRACEJUDGE_METRICS_SERVICE_PORT": "9808"}
        variables["TRACEJUDGE_PORT"] = link
        settings = load(variables)
        assert settings.metrics_port == Settings().metrics_port
        assert place_of("metrics_port", variables, None) == "defaults"
        (line,) = map(str, unknown_variables(settings, variables))
        assert "link of Kubernetes to a service, and is ignored; set enableServiceLinks: false" in line
        assert load({**variables, "TRACEJUDGE_METRICS_PORT": "9900"}).metrics_port == 9900
        environment = {**variables, "TRACEJUDGE_SERVICE": "s", "TRACEJUDGE_SERVICE_PORT": link}
        assert load_settings(environ=environment, **NUMBERS).service == "s"


def test_a_mistake_is_one_line_with_place_key_and_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, wrong = read_table(__file__, "mistakes"), {}
    for number, (name, row) in enumerate(rows.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        for file, text in row.get("files", {}).items():
            write(text, file)
        variables = {variable: expand(text) for variable, text in row.get("variables", {}).items()}
        with pytest.raises(SettingsError) as caught:
            load(variables, None, row.get("arguments", {}))
        line, expected = str(caught.value), row["says"]
        for mark, text in COMPUTED.items():
            expected = expected.replace(mark, text)
        is_safe = line.isprintable() and SECRET not in line and "s3cret" not in line
        if line != expected or not is_safe:
            wrong[name] = line
    if os.environ.get("UPDATE_GOLDEN") == "1":
        rows = {name: row | {"says": wrong.get(name, row["says"])} for name, row in rows.items()}
        lines = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
        text = "{\n" + ",\n".join(lines) + "\n}\n"
        (Path(__file__).parent / "data" / "mistakes.json").write_text(text, encoding="utf-8")
    assert wrong == {}, "not in one line, with a secret, or not what data/mistakes.json says"


def test_a_proxy_of_the_environment_that_cannot_be_used_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not quoted: it may hold a password."""
    monkeypatch.setenv("HTTP_PROXY", "socks5://user:s3cret@p:1")
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SettingsError, match="otlp_endpoint: its proxy is not http") as caught:
        load({"TRACEJUDGE_OTLP_ENDPOINT": "http://collector:4318"})
    assert "s3cret" not in str(caught.value)
    assert load({"TRACEJUDGE_OTLP_ENDPOINT": "http://collector:4318", "TRACEJUDGE_PROXY": "none"}).proxy == "none"
