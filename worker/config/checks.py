"""Checks of relations between settings, which no field shows by itself: URLs, access, models, rules, exported names.

Each check raises ``SettingsError`` at the first mistake.
"""

import ipaddress
import math
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise, product
from typing import Final, NamedTuple, get_args, get_type_hints
from urllib.parse import parse_qsl, urlsplit

from kombu.transport import TRANSPORT_ALIASES

from judges.core.combine import Combine, is_disagreement, metrics_of
from judges.core.judge import Judge
from judges.core.model import DECIDING
from judges.custom.definition import nearest
from judges.custom.installed import installed
from judges.custom.variables import has_value
from judges.models.credentials import NO_PROXY, ProxyRefusedError, check_pem, proxy_for
from judges.models.http import is_endpoint
from judges.models.registry import ModelSettingsError, check, find
from judges.registry import catalogue, configured
from tracejudge import ConfigurationError
from tracejudge.redis_url import has_misplaced_login, mask_url, parse_redis_url
from tracejudge.sharding import parse_shards
from worker.config.errors import with_rule_name
from worker.config.graders import CODE, is_reserved, judge_for
from worker.config.receivers import HttpUrl, OtlpSettings
from worker.config.redaction import pattern_fault
from worker.config.settings import MAX_KEY_BYTES, Board, Gateway, Rule, Settings, SettingsError
from worker.storage.client import each

# A secret pasted in place of the variable's name has other characters, as a rule.
_VARIABLE_NAME: Final = re.compile(r"[A-Z_][A-Z0-9_]{0,100}")
_MAX_MODELS: Final = 9
# Keys in Redis, or labels, hold the name.
_TABLE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HINTS: Final = get_type_hints(Settings, include_extras=True)
_HTTP_URLS: Final = tuple(key for key, kind in _HINTS.items() if HttpUrl in get_args(kind))
_PEM_FILES: Final = ("metrics_tls_cert", "metrics_tls_key", "ca_file", "client_cert", "client_key")
_WAYS: Final = ", ".join(get_args(Combine))
# Schemes that the worker translates for kombu.
_OUR_BROKERS: Final = frozenset({"unix", "redis+sentinel", "rediss+sentinel"})
_QUOTING: Final = "the URL has an @ after the host; quote / ? # @ in a password as %2F %3F %23 %40"


def check_settings(settings: Settings, origin: Mapping[str, str], *, needs_rules: bool) -> None:
    """Check everything; ``origin`` names the file, variable or argument of each setting."""
    _check_urls(settings, origin)
    _check_secrets(settings, origin)
    _check_receivers(settings, origin)
    _check_gateway(settings.gateway, f"{origin.get('gateway', 'defaults')}: gateway")
    _check_board(settings.board, f"{origin.get('board', 'defaults')}: board")
    if not settings.roles:
        raise SettingsError(f"{origin['roles']}: roles: is empty; name at least one of ingest, judge, export, monitor")
    if len(set(settings.series_labels)) < len(settings.series_labels):
        raise SettingsError(f"{origin['series_labels']}: series_labels: names a label twice; name each once")
    for number, pattern in enumerate(settings.redact.patterns):
        if (wrong := pattern_fault(pattern)) is not None:
            raise SettingsError(f"{origin['redact']}: redact.patterns[{number}]: {wrong}")
    check_models(settings, origin.get("models", "defaults"))
    has_rules = "rules" in origin or "default" in settings.models
    if needs_rules and not has_rules:
        fix = "call one default, or write [[rules]] with the model of each"
        raise SettingsError(f"{origin['models']}: models: none is the default; {fix}")
    if settings.give_up_after >= settings.ledger_ttl_s:
        here = f"{origin.get('give_up_after', origin.get('retention', 'defaults'))}: give_up_after"
        raise SettingsError(f"{here}: must be less than retention and 24h together, or a verdict could count twice")
    known = frozenset((*catalogue(), *installed(frozenset(catalogue())), *settings.judges))
    for judge in settings.monitor.safety:
        if judge not in known:
            here = f"{origin.get('monitor', 'defaults')}: monitor.safety"
            raise SettingsError(f"{here}: there is no judge {judge!r}{nearest(judge, known)}")
    _check_cascades(settings, origin)
    _check_calibrations(settings, origin.get("calibrations", "defaults"))
    if has_rules:
        check_rules(settings, origin.get("rules", "defaults"))
        _check_budgets(settings, origin)


def _check_urls(settings: Settings, origin: Mapping[str, str]) -> None:
    def refuse(key: str, url: str, otherwise: str) -> None:
        """Name the key and never the URL, which may hold a password."""
        fix = _QUOTING if any(map(has_misplaced_login, each(url))) else otherwise
        raise SettingsError(f"{origin[key]}: {key}: {fix}")

    _check_servers(settings, origin)
    if settings.broker_url and not _is_broker(settings.broker_url):
        refuse("broker_url", settings.broker_url, "must be a URL, as amqp://host or redis://host:6379/0")
    urls = {key: url for key in _HTTP_URLS if (url := getattr(settings, key)) is not None}
    for key, url in urls.items():
        if has_misplaced_login(url) or not is_endpoint(url):
            refuse(key, url, "must be http://host:port or https://host:port")
    fault = next((text for is_wrong, text in OtlpSettings(url=settings.otlp_endpoint).faults() if is_wrong), None)
    if fault is not None and settings.otlp_endpoint is not None:
        raise SettingsError(f"{origin['otlp_endpoint']}: otlp_endpoint: {fault.removeprefix('url: ')}")
    proxy = settings.proxy
    if proxy is not None and proxy != NO_PROXY and (has_misplaced_login(proxy) or not is_endpoint(proxy)):
        refuse("proxy", proxy, "must be http://host:port, or none for no proxy")
    for key, url in urls.items():
        try:
            proxy_for(url, proxy)
        except ProxyRefusedError as error:
            raise SettingsError(f"{key}: {error}") from None


def _check_servers(settings: Settings, origin: Mapping[str, str]) -> None:
    """Check the addresses of all Redis servers, and the numbers of those that this worker serves."""
    key = "shards" if settings.shards else "redis_url"
    try:
        parse_shards(settings.shards) if settings.shards else parse_redis_url(settings.redis_url)
    except ConfigurationError as error:
        raise SettingsError(f"{origin[key]}: {error}") from None
    last = len(settings.redis_urls) - 1
    for number in settings.served_shards:
        if number > last:
            here = f"{origin['served_shards']}: served_shards"
            raise SettingsError(f"{here}: there is no shard {number}; the last one is {last}")


def check_files(
    settings: Settings, origin: Mapping[str, str], environment: Mapping[str, str], *, of_worker: bool = False
) -> None:
    """Open the files for TLS with Redis and the broker, and also all others that a worker opens at its start."""
    keys = dict.fromkeys(settings.redis_urls, "shards" if settings.shards else "redis_url")
    keys |= dict.fromkeys(each(settings.broker_url or ""), "broker_url")
    needs_authorities = False
    for url, key in keys.items():
        parts = urlsplit(url)
        for name, path in parse_qsl(parts.query):
            if name.removeprefix("ssl_") in {"ca_certs", "certfile", "keyfile"}:
                check_pem(f"{origin[key]}: {key}: {mask_url(url)}: {name}", path, SettingsError)
        needs_authorities |= parts.scheme.startswith(("rediss", "amqps")) and "ca_certs" not in parts.query
    if of_worker:
        owners = {"": settings, **{f"receivers.{name}.": one for name, one in settings.all_receivers.items()}}
        for owner, name in product(owners, _PEM_FILES):
            place = origin.get((owner or name).partition(".")[0])
            check_pem(f"{place}: {owner}{name}", getattr(owners[owner], name, None), SettingsError)
        called = [model.base_url or find(model).default_url for model in settings.models.values()]
        called += [getattr(one, "url", None) or "" for one in settings.all_receivers.values()]
        needs_authorities |= any(urlsplit(url).scheme == "https" for url in called)
    if needs_authorities:
        check_pem("SSL_CERT_FILE", environment.get("SSL_CERT_FILE"), SettingsError)


def _check_receivers(settings: Settings, origin: Mapping[str, str]) -> None:
    """Check names, addresses, credentials and certificates of receivers."""
    for name, options in settings.receivers.items():
        here = f"{origin['receivers']}: receivers.{name}"
        if _TABLE_NAME.fullmatch(name) is None or name == "otel":
            taken = "otel is the receiver of otlp_endpoint" if name == "otel" else "a name has letters, digits, _ and -"
            raise SettingsError(f"{here}: {taken}; choose another name")
        fault = next((text for is_wrong, text in options.faults() if is_wrong), None)
        if fault is not None:
            raise SettingsError(f"{here}.{fault}")
        try:
            proxy_for(getattr(options, "url", None) or "http://localhost", settings.proxy)
        except ProxyRefusedError as error:
            raise SettingsError(f"{here}.url: {error}") from None


def _is_broker(url: str) -> bool:
    """Return whether Celery can use a URL; its own errors are tracebacks that may quote a part of a password."""
    if any(map(has_misplaced_login, each(url))):
        return False
    try:
        parts = urlsplit(url)
        if parts.scheme in _OUR_BROKERS:
            parse_redis_url(url)
            return True
        usable = parts.scheme in TRANSPORT_ALIASES and parts.port != 0
    except ValueError:
        return False
    return usable


def _check_secrets(settings: Settings, origin: Mapping[str, str]) -> None:
    """Check the credential and the certificate of the metrics page, and the keys of hashes."""

    def given(*keys: str) -> list[str]:
        return [key for key in keys if getattr(settings, key) is not None]

    token = given("metrics_token_env", "metrics_token_file")
    password = given("metrics_password_env", "metrics_password_file")
    tls = given("metrics_tls_cert", "metrics_tls_key")
    user = settings.metrics_user
    as_name = "give the name of the variable that holds the secret, as METRICS_TOKEN, never the secret"
    names = given("metrics_token_env", "metrics_password_env")
    mistakes = [(not _VARIABLE_NAME.fullmatch(getattr(settings, key)), [key], as_name) for key in names]
    for first, *others in filter(None, (token, password)):
        mistakes.append((bool(others), others, f"goes in place of {first}; take one of them out"))
    has_colon = user is not None and (not user.isprintable() or ":" in user)
    in_place = "goes in place of metrics_user and its password; take one or the other out"
    beside = "goes with metrics_password_env or metrics_password_file; set one of them"
    mistakes += [
        (bool(token and (password or user is not None)), token, in_place),
        (bool(password and user is None), password, "goes with metrics_user; set that too"),
        (bool(user is not None and not password), ["metrics_user"], beside),
        (has_colon, ["metrics_user"], "may hold no colon and no line break"),
        (len(tls) == 1, tls, "metrics_tls_cert and metrics_tls_key go together; set both"),
    ]
    hash_keys = {
        "sampling_key": (settings.sampling_key,),
        "user_keys_former": settings.user_keys_former,
        "user_key": (settings.user_key or "",),
    }
    for name, values in hash_keys.items():
        is_long = any(len(value.encode()) > MAX_KEY_BYTES for value in values)
        mistakes.append((is_long, [name], f"must be of at most {MAX_KEY_BYTES} bytes; shorten it"))
    both = settings.user_key is not None and settings.user_key_file is not None
    mistakes.append((both, ["user_key_file"], "goes in place of user_key, not beside it; take one of them out"))
    for is_wrong, keys, fix in mistakes:
        if is_wrong:
            raise SettingsError(f"{origin[keys[0]]}: {keys[0]}: {fix}")


def _check_board(board: Board, here: str) -> None:
    if (board.tls_cert is None) != (board.tls_key is None):
        raise SettingsError(f"{here}: tls_cert and tls_key belong together; set both or none")
    if board.token_env is not None and board.token_file is not None:
        raise SettingsError(f"{here}: token_env and token_file exclude each other; keep one")
    for name, template in board.links.items():
        try:
            template.format(trace_id="", span_id="", session_id="", service="")
        except (LookupError, ValueError, AttributeError):
            known = "{trace_id}, {span_id}, {session_id} and {service}"
            raise SettingsError(f"{here}.links.{name}: may hold {known} only; write other braces twice") from None
    for address in board.proxies:
        try:
            ipaddress.ip_network(address)
        except ValueError:
            fix = "is no address and no network such as 10.0.0.0/8"
            raise SettingsError(f"{here}.proxies: {address!r} {fix}") from None


def _check_gateway(gateway: Gateway, here: str) -> None:
    for name, token in gateway.tokens.items():
        if token.token_env is not None and not _VARIABLE_NAME.fullmatch(token.token_env):
            fix = "give the name of the variable that holds the token, as GATEWAY_TOKEN, never the token"
            raise SettingsError(f"{here}.tokens.{name}.token_env: {fix}")
        if (token.token_env is None) == (token.token_file is None):
            raise SettingsError(f"{here}.tokens.{name}: set token_env or token_file, one of them")
    if (gateway.tls_cert is None) != (gateway.tls_key is None):
        raise SettingsError(f"{here}: tls_cert and tls_key go together; set both")
    if gateway.gather_max_s < gateway.gather_s:
        raise SettingsError(f"{here}.gather_max_s: must be at least gather_s")
    for origin in gateway.cors_origins:
        if re.fullmatch(r"https?://[^/\s*@?#]+", origin) is None:
            raise SettingsError(
                f"{here}.cors_origins: each must be an origin without a path, as https://app.example.com"
            )


def check_models(settings: Settings, place: str) -> None:
    """Check the models; ``place`` is the file or variable they stand in."""
    endpoints: dict[str, tuple[str, str]] = {}
    for name, model in settings.models.items():
        here = f"{place}: models.{name}"
        if model.api_key_env is not None and _VARIABLE_NAME.fullmatch(model.api_key_env) is None:
            fix = "give the name of the variable that holds the key, as OPENAI_API_KEY, never the key"
            raise SettingsError(f"{here}.api_key_env: {fix}")
        try:
            check(model)
        except ModelSettingsError as error:
            raise SettingsError(f"{here}.{error}") from error
        # Verdicts, limits and circuits are by judge model: two endpoints under one name would be mixed up.
        endpoint = model.provider, (model.base_url or "").rstrip("/")
        if endpoints.setdefault(model.judge_model, endpoint) != endpoint:
            raise SettingsError(f"{here}.label: another endpoint serves {model.judge_model!r} too; label each of them")
        if is_reserved(name):
            raise SettingsError(f"{here}: {name!r} is a reserved name; rename the table")
        if is_reserved(model.judge_model) or model.judge_model == CODE.judge_model:
            raise SettingsError(f"{here}.label: {model.judge_model!r} is a reserved name; give another")


def _check_cascades(settings: Settings, origin: Mapping[str, str]) -> None:
    place = origin.get("cascades", "defaults")
    for name in settings.cascades:
        _check_cascade(settings, name, f"{place}: cascades.{name}")
    # A verdict of the first model belongs to one cascade.
    taken: dict[tuple[str, str], str] = {}
    named = [(name, rule) for rule in settings.rules for name in rule.models if name in settings.cascades]
    for judge, name in ((judge, name) for name, rule in named for judge in rule.judges):
        other = taken.setdefault((judge, settings.cascades[name].first), name)
        if other != name:
            same = f"[cascades.{other}] has the same first model for {judge!r}"
            fix = "give one of them a model of its own, with another label"
            raise SettingsError(f"{place}: cascades.{name}.first: {same}; {fix}")


def _check_cascade(settings: Settings, name: str, here: str) -> None:
    cascade = settings.cascades[name]
    if _TABLE_NAME.fullmatch(name) is None:
        raise SettingsError(f"{here}: the name may hold letters, digits, _ and -, at most 64; rename the table")
    if name in settings.models:
        raise SettingsError(f"{here}: there is a [models.{name}] too; rename one of them")
    for key in ("first", "then"):
        _check_model_exists(settings, getattr(cascade, key), f"{here}.{key}")
    first, then = settings.models[cascade.first], settings.models[cascade.then]
    if not first.decides:
        fix = f"name a model whose provider is one of {', '.join(sorted(DECIDING))}"
        raise SettingsError(f"{here}.first: {cascade.first!r} returns no probabilities; {fix}")
    if first.judge_model == then.judge_model:
        raise SettingsError(f"{here}.then: {cascade.then!r} judges the first time; name another model")
    if sum(each is not None for each in (cascade.rate, cascade.usd_per_day, cascade.uncertain)) != 1:
        raise SettingsError(f"{here}: set rate, usd_per_day or uncertain, one of them")
    if cascade.usd_per_day is not None and then.price is None:
        raise SettingsError(f"{here}.usd_per_day: {cascade.then!r} has no price; set price in [models.{cascade.then}]")
    if cascade.uncertain is not None and cascade.uncertain[0] >= cascade.uncertain[1]:
        raise SettingsError(f"{here}.uncertain: the first probability must be below the second, as [0.2, 0.8]")


def check_rules(settings: Settings, place: str) -> None:
    """Check the rules; ``place`` is the file or variable they stand in."""
    known = frozenset((*catalogue(), *installed(frozenset(catalogue())), *settings.judges))
    judges = configured(settings.judges)
    names: set[str] = set()
    for number, rule in enumerate(settings.rules):
        here = f"{place}: rules[{number}]"
        if not rule.name:
            raise SettingsError(f"{here}.name: is empty; give the rule a name")
        if rule.name in names:
            raise SettingsError(f"{here}.name: {rule.name!r} is taken by another rule; give each its own")
        names.add(rule.name)
        try:
            _check_rule(settings, rule, here, judges, known)
        except SettingsError as error:
            raise with_rule_name(error, rule.name, len(settings.rules)) from error


def _check_rule(settings: Settings, rule: Rule, here: str, judges: Mapping[str, Judge], known: frozenset[str]) -> None:
    if not rule.judges:
        raise SettingsError(f"{here}.judges: is empty; name at least one judge, or take the rule out")
    for judge in rule.judges:
        if judge not in known:
            raise SettingsError(f"{here}.judges: there is no judge {judge!r}{nearest(judge, known)}")
    _check_unit(judges, rule, here)
    _check_models_of(settings, rule, here)
    _check_forms(settings, rule, here, judges)
    if rule.egress is not None:
        for name in rule.egress:
            _check_model_exists(settings, name, f"{here}.egress")
        asked = [model for judge in rule.judges for model in models_of_judge(settings, rule, judge)]
        if own := [name for name in asked if name not in rule.egress]:
            fix = "add it, or take egress out"
            raise SettingsError(f"{here}.egress: keeps the rule's own model {own[0]!r} out; {fix}")


def _check_unit(judges: Mapping[str, Judge], rule: Rule, here: str) -> None:
    for judge in filter(None, map(judges.get, rule.judges)):
        if judge.unit != rule.unit:
            fix = f'set unit = "{judge.unit}", and name only such judges in the rule'
            raise SettingsError(f"{here}.judges: {judge.name!r} judges a {judge.unit}, not a {rule.unit}; {fix}")
    if rule.unit == "session" and rule.always:
        # What came before in the conversation may not have been gathered.
        raise SettingsError(f"{here}.always: is for single traces, and the rule judges sessions; take always out")
    if rule.unit == "session" and rule.first_per_hour:
        fix = "take first_per_hour out"
        raise SettingsError(f"{here}.first_per_hour: counts traces, and the rule judges sessions; {fix}")


def _check_model_exists(settings: Settings, name: str, here: str) -> None:
    if name not in settings.models:
        if name == "default":
            # The rule may not write the name at all.
            other = next(iter(settings.models))
            fix = f'rename [models.{other}], or write model = "{other}" in the rule'
            raise SettingsError(f"{here}: there is no [models.default]; {fix}")
        raise SettingsError(f"{here}: there is no [models.{name}]{nearest(name, settings.models)}")


def models_of_judge(settings: Settings, rule: Rule, judge: str) -> tuple[str, ...]:
    """Name the models that a rule asks for one judge: the judge's own, or those of the rule."""
    own = settings.judges.get(judge, {}).get("model")
    return (own,) if isinstance(own, str) else settings.models_of(rule)


def _check_models_of(settings: Settings, rule: Rule, here: str) -> None:
    if not rule.models:
        raise SettingsError(f"{here}.model: is empty; name at least one model, or take the key out")
    for name in rule.models:
        if name in settings.cascades:
            _check_cascade_of(settings, rule, name, here)
        else:
            _check_model_exists(settings, name, f"{here}.model")
    # A limit in USD cannot be kept without a price.
    for judge in rule.judges:
        for name in models_of_judge(settings, rule, judge):
            _check_model_exists(settings, name, f"{here}.judges: the model of {judge!r}")
            if "max_usd" in settings.judges.get(judge, {}) and settings.models[name].price is None:
                fix = f"give it a price, or take max_usd out of the judge {judge!r}"
                raise SettingsError(f"{here}.model: [models.{name}] has no price to keep max_usd by; {fix}")
    if len(rule.models) > 1 and rule.combine is None:
        raise SettingsError(f"{here}.combine: is missing; say how verdicts of several models combine: one of {_WAYS}")
    if rule.combine is not None:
        _check_panel(settings, rule, here)
    if rule.second_model is not None:
        _check_second_model(settings, rule, here)


def _check_cascade_of(settings: Settings, rule: Rule, name: str, here: str) -> None:
    if rule.combine is not None:
        raise SettingsError(f"{here}.combine: [cascades.{name}] cannot be combined; take combine out")
    then = settings.cascades[name].then
    if rule.egress is not None and then not in rule.egress:
        fix = "add it, or name a model in place of the cascade"
        raise SettingsError(f"{here}.egress: keeps {then!r} of [cascades.{name}] out; {fix}")


def _check_forms(settings: Settings, rule: Rule, here: str, judges: Mapping[str, Judge]) -> None:
    """Check that the judges have a form for models that answer typed questions."""
    then = [settings.cascades[name].then for name in rule.models if name in settings.cascades]
    second = () if rule.second_model is None else (rule.second_model,)
    for judge in filter(None, map(judges.get, rule.judges)):
        # A judge with a model of its own is judged as without the cascade.
        of_cascade = () if "model" in settings.judges.get(judge.name, {}) else then
        for name in (*models_of_judge(settings, rule, judge.name), *of_cascade, *second):
            try:
                judge_for(settings, judge, settings.models[name])
            except ValueError as error:
                fix = f"name a model that writes text in place of [models.{name}], or take the judge out"
                raise SettingsError(f"{here}.judges: {error}; {fix}") from error


def _check_calibrations(settings: Settings, place: str) -> None:
    judges = configured(settings.judges) if settings.calibrations else {}
    deciding = {one.judge_model for one in settings.models.values() if one.decides}
    seen: set[tuple[str, str, str]] = set()
    for number, one in enumerate(settings.calibrations):
        here = f"{place}: calibrations[{number}]"
        if (judge := judges.get(one.judge)) is None:
            raise SettingsError(f"{here}.judge: there is no judge {one.judge!r}{nearest(one.judge, judges)}")
        if one.model not in deciding:
            what = f"no model that returns probabilities is called {one.model!r}"
            raise SettingsError(f"{here}.model: {what}{nearest(one.model, deciding)}")
        rated = [metric.name for metric in judge.metrics if metric.pass_rule is not None]
        if one.metric_of(judge) not in rated:
            what = f"{one.judge} has no metric {one.metric_of(judge)!r} that passes or fails"
            raise SettingsError(f"{here}.metric: {what}{nearest(one.metric_of(judge), rated)}")
        name = (one.judge, one.model, one.metric_of(judge))
        if name in seen:
            raise SettingsError(f"{here}: there is another one for this judge, model and metric; take one of them out")
        seen.add(name)
        if not 0 <= one.threshold <= 1:
            raise SettingsError(f"{here}.threshold: must be a probability, from 0 to 1")
        if one.platt is not None and (one.isotonic or not all(map(math.isfinite, one.platt)) or one.platt[0] <= 0):
            fix = "give finite numbers with a slope above 0, and no isotonic beside them"
            raise SettingsError(f"{here}.platt: must be a rising map; {fix}")
        points = one.isotonic
        rises = all(low[0] < high[0] and low[1] <= high[1] for low, high in pairwise(points))
        if not rises or not all(0 <= each <= 1 for point in points for each in point):
            raise SettingsError(f"{here}.isotonic: must be points [p, p'] from 0 to 1, with rising p and no falling p'")


def _check_second_model(settings: Settings, rule: Rule, here: str) -> None:
    here, name = f"{here}.second_model", rule.second_model or ""
    _check_model_exists(settings, name, here)
    second = settings.models[name]
    for judge in rule.judges:
        if second.judge_model in {settings.models[one].judge_model for one in models_of_judge(settings, rule, judge)}:
            raise SettingsError(f"{here}: {name!r} judges {judge!r} the first time; name another model")
        if "max_usd" in settings.judges.get(judge, {}) and second.price is None:
            fix = f"give it a price, or take max_usd out of the judge {judge!r}"
            raise SettingsError(f"{here}: [models.{name}] has no price to keep max_usd by; {fix}")
    if rule.egress is not None and name not in rule.egress:
        raise SettingsError(f"{here}: egress keeps {name!r} out; add it to egress, or name another model")


def _check_budgets(settings: Settings, origin: Mapping[str, str]) -> None:
    place = origin.get("rules", "defaults")
    for number, rule in enumerate(settings.rules):
        if rule.budget is not None and rule.budget not in settings.budgets:
            fix = nearest(rule.budget, settings.budgets)
            raise SettingsError(f"{place}: rules[{number}].budget: there is no [budgets.{rule.budget}]{fix}")
    rules = [rule.name for rule in settings.rules]
    judges = sorted({judge for rule in settings.rules for judge in rule.judges})
    for name, budget in settings.budgets.items():
        here = f"{origin.get('budgets', 'defaults')}: budgets.{name}"
        if _TABLE_NAME.fullmatch(name) is None:
            raise SettingsError(f"{here}: the name may hold letters, digits, _ and -, at most 64; rename the table")
        if not any(budget.limits):
            limits = "usd_per_day, usd_per_hour, tokens_per_day, tokens_per_hour"
            raise SettingsError(f"{here}: has no limit; set at least one of {limits}")
        named = {"rules": rules, "judges": judges, "models": list(settings.models), "exempt": judges}
        for key, known in named.items():
            for value in getattr(budget, key):
                if value not in known:
                    kind = "judge of a rule" if known is judges else key.removesuffix("s")
                    raise SettingsError(f"{here}.{key}: there is no {kind} {value!r}{nearest(value, known)}")
        # A limit in USD cannot be kept without a price.
        paid = [settings.models[model] for model in budget.models or ()]
        if budget.in_usd and (unpriced := next((one for one in paid if one.price is None), None)) is not None:
            fix = "give it a price, or limit tokens instead"
            raise SettingsError(f"{here}.models: {unpriced.judge_model!r} has no price to keep USD by; {fix}")


def _check_panel(settings: Settings, rule: Rule, here: str) -> None:
    if len(rule.models) == 1:
        raise SettingsError(f"{here}.combine: needs several models; name them as model, or take combine out")
    if len(rule.models) > _MAX_MODELS:
        raise SettingsError(f"{here}.model: names {len(rule.models)} models; name at most {_MAX_MODELS}")
    seen: set[str] = set()
    for name in rule.models:
        judge_model = settings.models[name].judge_model
        if judge_model in seen:
            raise SettingsError(f"{here}.model: {judge_model!r} is there twice; name each judge model once")
        if "," in judge_model:
            raise SettingsError(f"{here}.model: {judge_model!r} holds a comma; give [models.{name}] a label without")
        seen.add(judge_model)
    judges = configured(settings.judges)
    for judge in map(judges.__getitem__, rule.judges):
        if not has_value(judge):
            fix = "its result is a text, list or object; name one model in a rule of its own"
            raise SettingsError(f"{here}.combine: the verdicts of {judge.name!r} cannot be combined: {fix}")
        # Judges in code are not combined.
        metrics = judge.metric_names if judge.run is None else ()
        for metric in filter(is_disagreement, metrics):
            fix = "rename the judge or its metric, or name one model"
            taken = f"{judge.name!r} has the metric {metric!r}, as a disagreement of models is named"
            raise SettingsError(f"{here}.judges: {taken}; {fix}")


class Clash(NamedTuple):
    """An exported name that metrics of two judges share; ``judge`` is listed after ``other``."""

    name: str
    judge: str
    other: str


def exported_name(judge: str, metric: str) -> str:
    """Return the name of a metric in exports: the judge's name where the metric has it too, else both."""
    return judge if metric == judge else f"{judge}_{metric}"


def clashes(own: Mapping[str, Judge]) -> Iterator[Clash]:
    """Find exported names that two judges share: the user's own, those of distributions, and the built-in ones."""
    # Exporters name a result after its judge and metric alone, so equal names would be one series there.
    built_in = catalogue()
    taken: dict[str, str] = {}
    for judge in {**built_in, **installed(frozenset(built_in)), **own}.values():
        # With the metrics that only panels give.
        for metric in metrics_of(judge.metrics):
            name = exported_name(judge.name, metric.name)
            other = taken.setdefault(name, judge.name)
            if other != judge.name:
                yield Clash(name, judge.name, other)
