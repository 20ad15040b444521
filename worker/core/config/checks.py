"""Checks of relations between settings, which no field shows by itself: addresses, credentials, files, access.

``loading`` checks judges, models and rules, which a process that judges nothing does not need.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final, get_args
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from judges.core.faults import Fault, fault_of
from judges.custom.definition import unknown_name_fault
from judges.models.credentials import NO_PROXY, is_endpoint, pem_fault
from judges.requests.redaction import pattern_fault
from tracejudge import ConfigurationError
from tracejudge.redis_url import has_misplaced_login, mask_url, parse_redis_url
from worker.core.config.serving import QUOTING, Secret, Tls
from worker.core.config.settings import MAX_KEY_BYTES, Role, Settings
from worker.core.features import collect_all, installed

# Keys in Redis, or labels, hold the name.
_TABLE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_RANGES: Final = re.compile(r"\d{1,2}(-\d{1,2})?(,\d{1,2}(-\d{1,2})?)*")
_PEM_FILES: Final = ("metrics_tls_cert", "metrics_tls_key", "ca_file", "client_cert", "client_key")
# Schemes that the worker translates for kombu.
_OUR_BROKERS: Final = frozenset({"unix", "redis+sentinel", "rediss+sentinel"})


def setting_faults(settings: Settings, *, needs_broker: bool = False) -> Iterator[Fault]:
    """Check all settings but those of judges, models and rules; only a worker needs a broker."""
    yield from _servers(settings, needs_broker=needs_broker)
    yield from _broker_and_proxy(settings)
    yield from _metrics_page(settings)
    yield from _hash_keys(settings)
    yield from collect_all((feature.faults for feature in installed()), settings)
    if not settings.roles:
        yield Fault("roles", "is empty", f"name at least one of {', '.join(get_args(Role))}", "missing-key")
    if len(set(settings.series_labels)) < len(settings.series_labels):
        yield Fault("series_labels", "names a label twice", "name each once")
    for number, pattern in enumerate(settings.redact.patterns):
        if (wrong := pattern_fault(pattern)) is not None:
            yield fault_of(f"redact.patterns[{number}]", wrong)
    if settings.give_up_after >= settings.ledger_ttl_s:
        what = "must be less than retention and 24h together, or a verdict could count twice"
        yield Fault("give_up_after", what, code="conflict")


def table_name_faults(key: str, name: str) -> Iterator[Fault]:
    """Check a name that is part of keys in Redis, or of labels."""
    if _TABLE_NAME.fullmatch(name) is None:
        yield Fault(key, "the name may hold letters, digits, _ and -, at most 64", "rename the table")


def missing_model_faults(settings: Settings, name: str, key: str, owner: str = "") -> Iterator[Fault]:
    """Check the name of a model; ``owner`` begins the text of the fault."""
    if name == "default" and name not in settings.models:
        # The rule may not write the name at all.
        other = next(iter(settings.models))
        fix = f'rename [models.{other}], or write model = "{other}" in the rule'
        yield Fault(key, f"{owner}there is no [models.default]", fix, "unknown-name")
    elif name not in settings.models:
        yield unknown_name_fault(key, f"{owner}there is no [models.{name}]", name, settings.models)


def _servers(settings: Settings, *, needs_broker: bool) -> Iterator[Fault]:
    """Check the address of Redis, the number of partitions, and those that this worker serves."""
    try:
        is_cluster = parse_redis_url(settings.redis_url).is_cluster
    except ConfigurationError as error:
        # The message of the SDK begins with the key in most cases.
        first, _, rest = str(error).partition(" ")
        yield fault_of("redis_url", rest if first == "redis_url" else str(error))
        return
    if not is_cluster and settings.partition_count > 1:
        yield Fault("partitions", "needs a cluster", "set redis_url to redis+cluster://host:6379, or leave it out")
    if needs_broker and is_cluster and settings.broker_url is None:
        fix = 'set it to another server, as broker_url = "amqp://rabbitmq" or "redis://host:6379/0"'
        yield Fault("broker_url", "is required with a cluster, which Celery cannot use as its broker", fix)
    if settings.served_partitions is not None and not _RANGES.fullmatch(settings.served_partitions):
        yield Fault("served_partitions", "must be numbers and ranges, as 0-3 or 0,2")
        return
    served = settings.served
    if not served:
        yield Fault("served_partitions", "has a range that ends before it begins", "write the smaller number first")
    elif served[-1] >= settings.partition_count:
        fix = f"the last one is {settings.partition_count - 1}"
        yield Fault("served_partitions", f"there is no partition {served[-1]}", fix, "unknown-name")


def _broker_and_proxy(settings: Settings) -> Iterator[Fault]:
    """Check two addresses; a fault never quotes one, which may hold a password."""
    broker, proxy = settings.broker_url, settings.proxy
    if broker and any(map(has_misplaced_login, split_urls(broker))):
        yield fault_of("broker_url", QUOTING)
    elif broker and not _is_broker(broker):
        yield Fault("broker_url", "must be a URL, as amqp://host or redis://host:6379/0")
    if proxy is not None and proxy != NO_PROXY:
        if has_misplaced_login(proxy):
            yield fault_of("proxy", QUOTING)
        elif not is_endpoint(proxy):
            yield Fault("proxy", "must be http://host:port, or none for no proxy")


def _is_broker(url: str) -> bool:
    """Return whether Celery can use a URL; its own errors are tracebacks that may quote a part of a password."""
    try:
        parts = urlsplit(url)
        if parts.scheme in _OUR_BROKERS:
            parse_redis_url(url)
            return True
        from kombu.transport import TRANSPORT_ALIASES  # noqa: PLC0415 - commands without a broker need it not

        is_usable = parts.scheme in TRANSPORT_ALIASES and parts.port != 0
    except ValueError:
        return False
    return is_usable


def file_faults(
    settings: Settings, environment: Mapping[str, str], endpoints: Sequence[str] | None = None
) -> Iterator[Fault]:
    """Open the files for TLS with Redis and the broker; with the endpoints of its models, all that a worker opens."""
    keys = {settings.redis_url: "redis_url"}
    keys |= dict.fromkeys(split_urls(settings.broker_url or ""), "broker_url")
    needs_authorities = False
    files: list[tuple[str, str, str | None]] = []
    for url, key in keys.items():
        try:
            parts = urlsplit(url)
        except ValueError:
            continue  # a fault of the address itself
        for name, file in parse_qsl(parts.query):
            if name.removeprefix("ssl_") in {"ca_certs", "certfile", "keyfile"}:
                files.append((key, f"{mask_url(url)}: {name}: ", file))
        needs_authorities |= parts.scheme.startswith(("rediss", "amqps")) and "ca_certs" not in parts.query
    if endpoints is not None:
        tables = {"": settings, **_receivers(settings)}
        for table, name in product(tables, _PEM_FILES):
            files.append((f"{table}{name}", "", getattr(tables[table], name, None)))
        called = (*endpoints, *(getattr(options, "url", None) or "" for options in tables.values()))
        needs_authorities |= any(url.lower().startswith("https:") for url in called)
    for key, where, path in files:
        if (wrong := pem_fault(path, is_key="key" in f"{key}{where}")) is not None:
            yield fault_of(key, f"{where}{wrong}", "unreadable-file")
    if needs_authorities and (wrong := pem_fault(environment.get("SSL_CERT_FILE"))) is not None:
        yield fault_of("", wrong, "unreadable-file", "SSL_CERT_FILE")


def _receivers(settings: Settings) -> dict[str, Struct]:
    parts = (feature.receivers(settings) for feature in installed() if feature.receivers is not None)
    return {f"receivers.{name}.": options for receivers in parts for name, options in receivers.items()}


def _metrics_page(settings: Settings) -> Iterator[Fault]:
    token, password = Secret.from_table(settings, "metrics_token_"), Secret.from_table(settings, "metrics_password_")
    yield from token.faults()
    yield from password.faults()
    user = settings.metrics_user
    if token.setting is not None and (password.setting is not None or user is not None):
        what = "goes in place of metrics_user and its password"
        yield Fault(token.setting, what, "take one or the other out", "conflict")
    if password.setting is not None and user is None:
        yield Fault(password.setting, "goes with metrics_user", "set that too", "conflict")
    if password.setting is None and user is not None:
        what = "goes with metrics_password_env or metrics_password_file"
        yield Fault("metrics_user", what, "set one of them", "conflict")
    if user is not None and (not user.isprintable() or ":" in user):
        yield Fault("metrics_user", "may hold no colon and no line break")
    yield from Tls.from_table(settings, "metrics_tls_").faults()


def _hash_keys(settings: Settings) -> Iterator[Fault]:
    keys = {
        "sampling_key": (settings.sampling_key,),
        "user_keys_former": settings.user_keys_former,
        "user_key": (settings.user_key or "",),
    }
    for key, values in keys.items():
        if any(len(value.encode()) > MAX_KEY_BYTES for value in values):
            yield Fault(key, f"must be of at most {MAX_KEY_BYTES} bytes", "shorten it")
    if settings.user_key is not None and settings.user_key_file is not None:
        what = "goes in place of user_key, not beside it"
        yield Fault("user_key_file", what, "take one of them out", "conflict")


def addresses(urls: str) -> str:
    """Write where several broker URLs point, without users and passwords; they are separated by `;`."""
    return ";".join(map(mask_url, split_urls(urls)))


def split_urls(urls: str) -> list[str]:
    """Split broker URLs. A `;` that no URL follows may be part of a password."""
    return re.split(r";(?=[A-Za-z0-9+.-]+://)", urls)
