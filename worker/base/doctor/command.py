"""`tracejudge doctor`: check every part that TraceJudge needs, and say how to fix each that is broken.

This module has the command and the checks of the data of workers in Redis; `redis_server` checks Redis and the broker,
`http_endpoints` the models and the metrics page, and each exporter its own needs.
"""

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import combinations, islice
from typing import Final, cast

import click
import msgspec
import redis
from msgspec import Struct, structs
from redis.exceptions import ResponseError
from rich.table import Table
from rich.text import Text

from judges.models.registry import PROVIDERS
from judges.registry import load_judges
from tracejudge.dialects.unread import Unread
from tracejudge_worker import replaced_files
from worker.base.accounting import describe_lost, read_account, sum_accounts
from worker.base.commands.options import JSON, OUT, REDIS, amount, config_file, print_json
from worker.base.dead_letters.store import DeadLetterStore
from worker.base.delivery.feature import DeliveryKeys
from worker.base.delivery.settings import all_receivers
from worker.base.doctor.finding import SLOW_MODEL, Check, Finding, broken, examine, ok, warning
from worker.base.doctor.lint import examine as examine_configuration
from worker.base.doctor.lint import finding_of
from worker.base.doctor.matching import newest_traces
from worker.base.doctor.redis_server import broker, clock, foreign_keys, permissions, reach, server, worker_commands
from worker.base.input.unusable import MAX_INVALID, NO_CONTENT, read_invalid, read_left_out, read_unread
from worker.base.scans import groups_of, scan_partitions
from worker.core.config.graders import Graders
from worker.core.config.reading import load_without_judges
from worker.core.config.settings import Settings
from worker.core.features import collect_all, find_exporters, import_attribute, installed
from worker.core.queue.batch import Evaluation
from worker.core.queue.ledger import read_outbox_entry
from worker.core.storage.client import Store, make_stores
from worker.core.storage.keys import INGEST_GROUP, MONITOR_GROUP
from worker.core.telemetry.backlog import measure
from worker.core.telemetry.health import HEARTBEAT_MS, PROGRAMS, live_circuits, live_workers

_STYLES: Final[Mapping[str, str]] = {"ok": "green", "warning": "yellow", "broken": "bold red"}
_VERSIONS: Final = "judge versions"
_NEWEST: Final = 1000
_MAX_LISTED: Final = 5
_OF_SPANS: Final = {NO_CONTENT, "no_model_call"}
_FAMILIES: Final = "model families"
_NEWEST_VERDICTS: Final = 500
_NAMES: Final = {
    "Claude": "claude",
    "Command": "command-",
    "DeepSeek": "deepseek",
    "Gemini": "gemini|gemma",
    "GPT": r"gpt|chatgpt|o[134](?![a-z\d])",
    "Grok": "grok",
    "Llama": "llama|meta-llama|codellama",
    "Mistral": "mistral|mixtral|ministral|magistral|codestral|devstral|pixtral",
    "Nova": "nova-",
    "Phi": r"phi-?\d",
    "Qwen": "qwen|qwq",
}
# A name may follow its vendor, as in `anthropic.claude-…`, or be part of the name of a panel.
_PATTERNS: Final = {family: re.compile(rf"(?<![a-z\d])(?:{names})", re.IGNORECASE) for family, names in _NAMES.items()}


@click.command("doctor")
@REDIS
@click.option("--ask", "asks", is_flag=True, help="Send each model one real, tiny question, and print its cost.")
@JSON
def command(config: str | None, redis_url: str | None, *, asks: bool, as_json: bool) -> None:
    """Check configuration, Redis, broker, models, receiver, clock, workers and accounting.

    Says how to fix each broken part. Exit code 1 when a part is broken; warnings alone do not count.
    """
    configuration = examine_configuration(os.environ, config, {"redis_url": redis_url})
    settings, is_wrong = configuration.settings, configuration.is_wrong
    findings = []
    for fault in map(finding_of, configuration.faults):
        what = ": ".join(filter(None, (fault.place, fault.key, fault.what)))
        findings.append(broken("configuration", what, fault.fix) if is_wrong else warning(fault.name, what, fault.fix))
    if settings is not None and not is_wrong:
        read = ok("configuration", configuration.path or "from variables, without a file")
        findings = [packages(), read, *findings, *diagnose(settings, os.environ, asks=asks)]
    is_broken = any(finding.result == "broken" for finding in findings)
    if as_json:
        print_json({"ok": not is_broken, "parts": findings})
    else:
        table = Table(title="Findings", box=None, padding=(0, 2), show_header=False)
        for finding in join_partitions(findings):
            cell = Text(finding.what)
            if finding.fix:
                cell.append(f"\n→ {finding.fix}", style="bold")
            table.add_row(Text(finding.result, style=_STYLES[finding.result]), finding.name, cell)
        OUT.print(table)
    sys.exit(int(is_broken))


def packages() -> Finding:
    """Check that no other distribution has files in our packages."""
    wrong = replaced_files(names_others=True)
    if wrong is None:
        return ok("packages", "`judges` and `worker` are TraceJudge's")
    what, _, fix = wrong.partition("; ")
    return broken("packages", what, fix)


def diagnose(settings: Settings, environment: Mapping[str, str], *, asks: bool = False) -> list[Finding]:
    """Run all checks; those that need a Redis only when it answers."""
    from worker.base.doctor.http_endpoints import ASK_S, ask, endpoint, page  # noqa: PLC0415 - clients

    stores = make_stores(settings.redis_url, settings.prefix, settings.partition_count)
    first = [of_partition(store, Check("redis", partial(redis_answers, settings, store))) for store in stores]
    first.append(Check("metrics page", partial(page, settings, environment)))
    if settings.broker_url:
        first.append(Check("broker", partial(broker, settings)))
    for name, model in settings.models.items():
        first.append(Check(f"model {name}", partial(endpoint, name, model, environment, settings.proxy)))
        if asks and PROVIDERS[model.provider].has_probe:
            first.append(Check(f"answer of {name}", partial(ask, name, model, environment, settings.proxy), ASK_S))
    for exporter in find_exporters(settings).values():
        first += exporter.checks(settings)
    findings = examine(first)
    reached, others = findings[: len(stores)], findings[len(stores) :]
    further: list[Check] = []
    masters = set[str]()
    for store, answer in zip(stores, reached, strict=True):
        # Every other check of this Redis would repeat the same failure.
        store.is_away = answer.result == "broken"
        if not store.is_away:
            # Return the checks that each partition needs by itself.
            checks = [
                Check("redis keys", partial(foreign_keys, store)),
                Check("roles", partial(roles, settings, store)),
                Check("circuits", partial(circuits, store)),
                Check(_VERSIONS, partial(judge_versions, settings, store)),
            ]
            if answer.what not in masters:
                checks += _checks_of_server(settings, store)
            masters.add(answer.what)
            further += [of_partition(store, check) for check in checks]
    further += [] if stores[0].is_away else _checks_of_all(settings, stores[0])
    try:
        return [*reached, *examine(further), *others]
    finally:
        for store in stores:
            store.close()


def redis_answers(settings: Settings, store: Store) -> Sequence[Finding]:
    """Check that the Redis of a partition answers."""
    return [reach("redis", settings.redis_url, store.keys.layout)]


def of_partition(store: Store, check: Check) -> Check:
    """Name the findings of a check by the number of the partition if there are several."""
    if len(store.partitions) == 1:
        return check
    partition = store.partition

    def run() -> Sequence[Finding]:
        return [structs.replace(finding, name=f"partition {partition}: {finding.name}") for finding in check.run()]

    return Check(f"partition {partition}: {check.name}", run, check.bound_s)


def join_partitions(findings: Sequence[Finding]) -> list[Finding]:
    """Join findings of several partitions that differ by the partition only, in the place of the first."""
    numbers: dict[Finding, list[str]] = {}
    for finding in findings:
        place, _, name = finding.name.partition(": ")
        is_of_partition = place.startswith("partition ")
        same = structs.replace(finding, name=name) if is_of_partition else finding
        numbers.setdefault(same, []).extend([place.removeprefix("partition ")] if is_of_partition else [])
    return [
        structs.replace(same, name=f"partition{'s' if len(of) > 1 else ''} {', '.join(of)}: {same.name}")
        if of
        else same
        for same, of in numbers.items()
    ]


def _checks_of_server(settings: Settings, store: Store) -> list[Check]:
    url, key, commands = settings.redis_url, store.keys.layout, worker_commands(store.keys)
    return [
        Check("redis keeping", partial(server, url, key)),
        Check("redis permissions", lambda: [permissions("redis permissions", url, commands, key)]),
        Check("clock", partial(clock, url, key)),
    ]


def _checks_of_all(settings: Settings, store: Store) -> list[Check]:
    """Return the checks of the data that all partitions have together; ``store`` is the first."""
    of_features = (import_attribute(feature.checks) for feature in installed() if feature.checks)
    return [
        # Without `broker_url` the broker is this Redis.
        *([] if settings.broker_url else [Check("broker", partial(broker, settings))]),
        Check("configurations", partial(configurations, settings, store, config_file())),
        Check("rules", partial(newest_traces, settings, store)),
        Check("accounting", partial(accounting, store)),
        Check("dead letters", partial(dead_letters, store)),
        Check("input", partial(unusable_input, store)),
        *collect_all(of_features, settings, store),
        Check("model families", partial(same_family, settings, store)),
    ]


def configurations(settings: Settings, store: Store, path: str | None) -> Sequence[Finding]:
    """Check whether running programs have the configuration that the doctor reads, so that its findings are theirs."""
    # A gateway judges nothing, and reads no judges.
    own, of_gateway = settings.config_hash, load_without_judges(os.environ, path).config_hash
    programs, others = live_workers(store), list[str]()
    for worker in programs:
        program = next((name for name in PROGRAMS if name in worker.roles), "worker")
        if worker.config_hash not in {"", of_gateway if program == "gateway" else own}:
            others.append(f"{program} {worker.process} ({worker.config_hash})")
    if not others:
        return [ok("configurations", f"{amount(len(programs), 'program')} run with this one")] if programs else []
    what = f"of other configuration than {path or 'the variables here'} ({own}) run: {', '.join(others)}"
    fix = "restart them with this one, or run the doctor with their file (--config) and their variables"
    return [warning("configurations", what, fix)]


def accounting(store: Store) -> Sequence[Finding]:
    """Check that the accounting balances."""
    lost = sum_accounts([read_account(partition) for partition in store.reachable]).lost
    if lost == 0:
        return [ok("accounting", "they balance")]
    return [broken("accounting", f"they do not balance: {describe_lost(lost)}", "see `tracejudge account`")]


def dead_letters(store: Store) -> Sequence[Finding]:
    """Check whether evaluations were given up."""
    dead = sum(measure(partition).dead for partition in store.reachable)
    if not dead:
        return [ok("dead letters", "none")]
    fix = "see `tracejudge dead list`, then `dead retry` or `dead drop`"
    return [warning("dead letters", f"{dead:,} evaluations were given up", fix)]


def unusable_input(store: Store) -> Sequence[Finding]:
    """Check whether entries of the last day were no traces, or fields were left out of traces."""
    since = store.now_ms() / 1000 - 86_400.0
    findings = []
    items = read_invalid(store)
    # Spans without a call of a model are below, if they are like those of one; most services send others.
    if invalid := [item for item in items if item.at >= since and item.reason not in _OF_SPANS]:
        last = invalid[0]
        count = f"{len(invalid)} or more" if len(invalid) == MAX_INVALID else f"{len(invalid)}"
        cause = ", ".join(filter(None, (last.reason, last.detail, last.trace_id and f"trace id {last.trace_id}")))
        what = f"{count} entries of the last day were no traces; the last: {cause}"
        findings.append(warning("input", what, "see `tracejudge invalid list`"))
    if left_out := [item for item in read_left_out(store) if item.at >= since]:
        listed = [
            f"{item.field} ({item.type}, trace id {item.trace_id or 'not shown'})" for item in left_out[:_MAX_LISTED]
        ]
        more = f" and {len(left_out) - _MAX_LISTED} more" if len(left_out) > _MAX_LISTED else ""
        what = f"fields were left out of traces within the last day: {', '.join(listed)}{more}"
        findings.append(warning("input fields", what, "send them in the types of docs/publishing.md"))
    # What was seen in the last hour: a table that was added since ends the warning.
    hour = store.now_ms() / 1000 - 3600.0
    told = [item.detail for item in items if item.reason == NO_CONTENT and item.at >= hour and not item.keys]
    for record in read_unread(store):
        kind = Unread(record.instrumentation, record.names[:_MAX_LISTED], 0, record.table)
        if record.at >= hour and kind.is_like_call:
            told.append(f"{kind.scope} (last at {time.strftime('%H:%M', time.gmtime(record.at))} UTC): {kind.words}")
    if told:
        what = "; ".join(islice(dict.fromkeys(told), _MAX_LISTED))
        findings.append(warning("input spans", what, "the spans of other programs need none of this"))
    return findings or [ok("input", "all entries of the last day were usable")]


def circuits(store: Store) -> Sequence[Finding]:
    """Check whether the circuit of a judge model is open."""
    opened = sorted({model for models in live_circuits(store) for model, open_s in models.items() if open_s})
    if not opened:
        return [ok("circuits", "none is open")]
    fix = f"fix the endpoint or its key; {SLOW_MODEL}; workers retry by themselves, and their log quotes its answer"
    return [broken("circuits", f"open, since the endpoint fails or rejects requests: {', '.join(opened)}", fix)]


def roles(settings: Settings, store: Store) -> Sequence[Finding]:
    """Look for a worker in each role, by heartbeats or by other traces of workers in Redis."""
    # The monitor is one for all partitions, and shows on the first.
    exporters = {
        name: group
        for name, group in find_exporters(settings).items()
        if group.role != "monitor" or store is store.first
    }
    backlog = measure(store, groups=tuple(exporters))
    workers = [worker.roles for worker in live_workers(store) if worker.roles.keys().isdisjoint(PROGRAMS)]
    seen = {"ingest": _is_read(store, store.keys.traces, INGEST_GROUP), "judge": bool(live_circuits(store))}
    lags: dict[str, list[str]] = {}
    for name, group in exporters.items():
        seen[group.role] = seen.get(group.role, False) or _is_read(store, store.keys.verdicts, name)
        lag = backlog.outbox[name].lag if name in backlog.outbox else 0
        lags.setdefault(group.role, []).extend([f"{lag:,} verdicts for {name}"] if lag else [])
    # Call them entries, because the stream also contains feedback and reports of the SDK.
    entries = f"; {backlog.traces.lag:,} entries wait" if backlog.traces.lag else ""
    if not workers and not any(seen.values()) and not store.call(lambda client: client.exists(store.keys.layout)):
        # Nothing is broken, because a new user runs the doctor before the first worker, which writes that key.
        return [warning("workers", f"no worker runs yet{entries}", "start `tracejudge worker`")]
    waiting = {
        "ingest": entries,
        "judge": f"; {backlog.batches:,} batches wait" if backlog.batches else "",
        **{role: f"; {' and '.join(groups)} wait" if groups else "" for role, groups in lags.items()},
    }
    findings = []
    for role, more in waiting.items():
        name, progress = f"role {role}", [worker[role] for worker in workers if role in worker]
        if any(progress):
            findings.append(ok(name, f"{sum(progress)} of {len(progress)} workers make progress{more}"))
        elif progress:
            fix = "see /readyz of a worker for the cause, and its log"
            findings.append(broken(name, f"{len(progress)} workers run it, and none makes progress{more}", fix))
        elif seen[role]:
            # A worker without a heartbeat of this role still shows by the consumers of its group.
            findings.append(ok(name, f"a worker was seen{more}"))
        else:
            fix = f"start one: tracejudge worker --roles {role}, or without --roles for all"
            findings.append(broken(name, f"no worker runs it{more}", fix))
    # A group that is left over shows as a backlog that never ends.
    if unread := sorted(groups_of(store, store.keys.verdicts).keys() - exporters.keys() - {MONITOR_GROUP}):
        fix = f"add the receiver again, or remove the group: XGROUP DESTROY {store.keys.verdicts} {unread[0]}"
        what = f"no receiver of this configuration reads {', '.join(unread)}"
        findings.append(warning("removed receivers", what, fix))
    for name in all_receivers(settings):
        due = DeliveryKeys(store.keys.prefix).receiver_parked(name)[1]
        if parked := store.call(lambda client: client.zcard(due)):  # noqa: B023 - called at once
            fix = "send the spans of the services there, with the same ids; after about 2.6 hours verdicts are dropped"
            what = f"{amount(parked, 'verdict')} parked: it does not know their traces or spans yet"
            findings.append(warning(f"parked for {name}", what, fix))
    return findings


def _is_read(store: Store, stream: str, group: str) -> bool:
    """Check whether a consumer has read from a group recently; older Redis does not count reads that found nothing."""

    def idle(client: "redis.Redis") -> list[int]:
        try:
            return [int(consumer["idle"]) for consumer in client.xinfo_consumers(stream, group)]
        except ResponseError:
            return []  # there is no stream or no group yet

    return any(idle_ms < HEARTBEAT_MS for idle_ms in store.call(idle))


class _Item(Struct, frozen=True):
    evaluations: tuple[Evaluation, ...]


class _Batch(Struct, frozen=True):
    """The part of a batch that names its evaluations; its traces are not decoded."""

    items: tuple[_Item, ...]


_decoder: Final = msgspec.json.Decoder(_Batch)


def judge_versions(settings: Settings, store: Store, clock: Callable[[], float] = time.monotonic) -> Sequence[Finding]:
    """Look for evaluations of unknown judge versions among the newest batches and dead letters."""
    # After an update of a judge, evaluations of the former version wait until a worker has it.
    graders = Graders(settings, load_judges(settings.judges))
    versions = cache(graders.versions)
    # Batches and dead letters may be large, and the doctor must not keep Redis busy.
    end = clock() + 2.0

    def unknown(evaluations: Iterator[Evaluation]) -> Counter[str]:
        counts: Counter[str] = Counter()
        for evaluation in evaluations:
            counts[evaluation.judge] += evaluation.version not in versions(evaluation.judge)
            if clock() > end:
                break
        return +counts

    def listed(judges: Counter[str]) -> str:
        return ", ".join(f"{name} ({count:,})" for name, count in sorted(judges.items()))

    findings = []
    if waiting := unknown(_waiting(store)):
        fix = (
            "start a worker with the version that chose them, or wait: after "
            f"{settings.give_up_after / 3600:g} h they are given up; "
            "`tracejudge replay --since 6h --judge NAME` judges their traces by the new version"
        )
        what = f"{waiting.total():,} evaluations wait for other versions of {listed(waiting)}"
        findings.append(warning(_VERSIONS, what, fix))
    newest = store.call(lambda client: client.zrevrange(store.keys.dead_due, 0, _NEWEST - 1))
    letters = (dead.letter for dead in DeadLetterStore(store).heads([raw.decode() for raw in newest]))
    if dead := unknown(letter.evaluation for letter in letters if letter.reason == "unknown_judge_version"):
        fix = "`tracejudge dead drop --reason unknown_judge_version`, or `dead retry` where that version is back"
        what = f"{dead.total():,} evaluations were given up for other versions of {listed(dead)}"
        findings.append(warning("judge versions given up", what, fix))
    return findings or [ok(_VERSIONS, "all waiting evaluations are known here")]


def _waiting(store: Store) -> Iterator[Evaluation]:
    # Look at the batches that are due last, because those that no worker can judge are put off again and again.
    for batch_id in store.call(lambda client: client.zrevrange(store.keys.leases, 0, _NEWEST - 1)):
        name = store.keys.batch(batch_id.decode())
        payload = cast("bytes | None", store.call(lambda client, name=name: client.get(name)))  # type: ignore[misc]
        try:
            batch = _decoder.decode(payload or b'{"items":[]}')
        except msgspec.DecodeError:
            continue  # of a newer version
        yield from (evaluation for item in batch.items for evaluation in item.evaluations)


def families(model: str) -> frozenset[str]:
    """Return the families that the name of a model belongs to: several for a model that is derived from others."""
    return frozenset(family for family, pattern in _PATTERNS.items() if pattern.search(model))


def same_family(settings: Settings, store: Store) -> Sequence[Finding]:
    """Check whether models judge answers of their own family, in the newest verdicts, or vote with models of it."""
    names = {model.judge_model: model.model or model.judge_model for model in settings.models.values()}
    chunks = scan_partitions(store, store.keys.verdicts, newest_first=True, most=_NEWEST_VERDICTS)
    entries = islice((entry for chunk in chunks for entry in chunk), _NEWEST_VERDICTS)
    read = [outbox_entry.verdict for entry in entries if (outbox_entry := read_outbox_entry(entry)) is not None]
    pairs = Counter((verdict.judge_model, verdict.model) for verdict in read if verdict.model)
    findings = [
        warning(
            _FAMILIES,
            f"{judge_model} judges answers of {model}: both are of the family {', '.join(sorted(common))} "
            f"({count:,} of the newest {len(read):,} verdicts)",
            "judges tend to prefer answers of their own family: take a judge model of another one, or measure "
            "the error by `tracejudge calibrate`",
        )
        for (judge_model, model), count in sorted(pairs.items())
        if (common := families(names.get(judge_model, judge_model)) & families(model))
    ]
    findings += [
        warning(
            _FAMILIES,
            f"{first} and {second} vote in {panel.judge_model}: both are of the family {', '.join(sorted(common))}",
            "models of one family err alike: take one of another family; `tracejudge report` has the effective votes",
        )
        for panel in Graders(settings, {}).panels.values()
        for first, second in combinations(panel.members, 2)
        if (common := families(names[first]) & families(names[second]))
    ]
    return findings or [ok(_FAMILIES, "no model judges answers of its own family")]
