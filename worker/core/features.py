"""Hooks of features and of parts of base: one frozen ``Feature`` each.

The core imports none of them. ``worker/installed.py`` lists their modules, and the runtime builds lists of hooks from
them. A hook is a factory: it gets parts of the worker and returns the object that works, or None if the configuration
does not need it. Factories run once at the start, so a hook that is not needed costs a trace nothing.

What counts or finishes (threads, chores) is built whenever the feature is installed, because verdicts of an earlier
configuration may be under way. What is on the way of a trace is built only if the configuration uses it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from msgspec import structs

if TYPE_CHECKING:
    from judges.core.faults import Fault, Faults
    from judges.core.judge import Judge, Unit
    from judges.core.model import ChatModel
    from judges.core.verdict import Assessment, Verdict
    from tracejudge import Trace
    from worker.core.config.reading import ConfigSources
    from worker.core.config.settings import ExtensibleTable, Settings
    from worker.core.export.consumer import ExportConsumer
    from worker.core.ingest.consumer import Answer, Plan
    from worker.core.judging.consumer import JudgingConsumer
    from worker.core.queue.batch import Batch, Evaluation, Item
    from worker.core.queue.ledger import Ledger
    from worker.core.queue.notify import Notifier
    from worker.core.selection.evaluations import BatchWriter
    from worker.core.selection.sampling import Choice, CompiledRule, Rules
    from worker.core.selection.stream_entry import FeedbackEntry, TraceEntry
    from worker.core.storage.client import Store
    from worker.core.storage.keys import KeySpace
    from worker.core.telemetry.backlog import Backpressure
    from worker.core.telemetry.metrics import Metrics
    from worker.core.telemetry.service import ServiceThread

A = ParamSpec("A")
E = TypeVar("E", bound="ExtensibleTable")
P = TypeVar("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TraceHookContext:
    """The parts of one partition that choose and judge, for hooks on the way of a trace."""

    settings: "Settings"
    metrics: "Metrics | None"  # None if nothing is counted, as in an offline evaluation.
    ledger: "Ledger"  # The ledger, and with it the store of the partition.
    rules: "Rules"  # The rules, and through them judges and models.


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """The parts of a worker for one partition, for hooks with threads."""

    settings: "Settings"
    metrics: "Metrics"
    judges: "Mapping[str, Judge]"
    store: "Store"
    rules: "Rules"  # The rules, and through them which judge is asked of which model.
    notifier: "Notifier"
    pressure: "Backpressure"  # How much waits, and what is shed.
    judging: "JudgingConsumer"


class PartitionThread(NamedTuple):
    """A thread of the process, and the partition that it reads."""

    thread: "ServiceThread"
    store: "Store"


class ChooseLimits(NamedTuple):
    """Limits for the scripts `choose` and `replay`: of pending feedback (0 keeps none), and of conversations."""

    max_pending: int = 0
    feedback_wait_ms: int = 0
    sessions: Mapping[str, object] = {}


class IngestHook:
    """The part of a feature in one read of ingest. A subclass overrides what it needs; the rest costs nothing.

    An exception fails the read: the thread backs off, and the entries stay pending and are read again. So ``adjust``,
    ``gather`` and ``feedback`` must not raise for any trace.
    """

    fields: "Collection[str]" = ()  # The fields of a trace that ``adjust`` reads.

    def before_read(self) -> bool | None:
        """Prepare for a read; called in the ingest thread, may ask Redis. Return True if ``adjust`` changes."""

    def adjust(
        self, rules: "Sequence[CompiledRule]", trace: "Trace"
    ) -> "tuple[Sequence[CompiledRule], Callable[[], Collection[str]] | None]":
        """Return the rules that match a trace with their rates of now, and what is called for each such trace, if any.

        Called once for all traces that the same rules match and that have the same ``fields``; a hook gets the rules
        as the one before it has adjusted them. The call returns the names of rules that choose the trace whatever
        their rates.
        """
        raise NotImplementedError

    def limits(self, limits: ChooseLimits) -> ChooseLimits:
        """Return the limits with those of the feature; called once, at the start."""
        return limits

    def gather(
        self, writer: "BatchWriter", entry: "TraceEntry", choices: "tuple[Choice, ...]", replay: str = ""
    ) -> "Mapping[str, object] | None":
        """For conversations, in one feature at most: return the part of one in a plan; None if there is none."""

    def feedback(self, entry: "FeedbackEntry") -> str | None:
        """For late feedback, in one feature at most: return it as it is kept until a pass; None if it is not."""

    def after_read(self, plan: "Plan", answer: "Answer") -> None:
        """Follow what took effect of a read with invalid entries or fields; in the ingest thread, may ask Redis."""

    def close(self) -> None:
        """Write what is left; called when the ingest thread has ended."""


def make_ingest_hooks(context: TraceHookContext) -> "tuple[IngestHook, ...]":
    """Make the hooks that the configuration needs; without ``before_read`` rates are whole, and all values new."""
    return build_hooks((feature.ingest for feature in installed()), context)


def collect_limits(hooks: "Sequence[IngestHook]") -> dict[str, object]:
    """Return the fields of a plan for the scripts `choose` and `replay` that limit what features keep."""
    return reduce(lambda limits, hook: hook.limits(limits), hooks, ChooseLimits())._asdict()


class Assessor(Protocol):
    """Answers evaluations in place of a judge model."""

    async def prepare(self, batch: "Batch") -> object:
        """Read what the evaluations of a batch need; called in the event loop, handles ``StoreError`` itself."""

    def assess(self, prepared: Any, judge: "Judge", evaluation: "Evaluation", judge_model: str) -> "Assessment | None":
        """Return the assessment, None for an evaluation of others; without I/O. An exception is `internal_error`."""


class ModelWrapper(Protocol):
    """Stands between an evaluation and its model."""

    def wrap(self, model: "ChatModel", trace: "Trace", evaluation: "Evaluation") -> "ChatModel":
        """Return the model that the evaluation asks; ``trace`` is as published. An exception is `internal_error`."""

    async def aclose(self) -> None:
        """End before the connections of models are closed."""


class VerdictHook:
    """Adds batches in the step that writes a verdict."""

    async def refresh(self) -> None:
        """Read what choices depend on, before a batch; called in the event loop, handles ``StoreError`` itself."""

    def choose(self, verdict: "Verdict", item: "Item", evaluation: "Evaluation") -> "tuple[Verdict, Sequence[Batch]]":
        """Return the verdict, which may have further details, and the batches that follow from it.

        Called in the event loop for every final verdict, without I/O. An exception is `internal_error`: the verdict is
        not written, and the evaluation is judged and paid again.
        """
        raise NotImplementedError


def find_overrides(hooks: Sequence[object], name: str) -> tuple[Callable[..., Any], ...]:
    """Return the bound methods of those hooks that override a method of ``IngestHook`` or ``VerdictHook``."""
    inherited = {getattr(base, name, None) for base in (IngestHook, VerdictHook)}
    return tuple(getattr(hook, name) for hook in hooks if getattr(type(hook), name) not in inherited)


def find_single(hooks: Sequence[object], name: str) -> Callable[..., Any] | None:
    """Return the bound method of the only hook that overrides a method, None without one; of two ``ValueError``."""
    methods = find_overrides(hooks, name)
    if len(methods) > 1:
        raise ValueError(f"two features have an ingest hook with {name}")
    return methods[0] if methods else None


@dataclass(frozen=True, slots=True)
class ExporterSpec:
    """A consumer group of the outbox, and what makes its exporter."""

    role: str  # The role of the worker that runs it.
    # Makes the thread that exports from one partition; None if a thread of the process does.
    make: "Callable[[Settings, Store, Metrics], ExportConsumer] | None"
    checks: "Callable[[Settings], Sequence[Any]]" = lambda _: ()  # What `tracejudge doctor` checks.
    # Which data of exported verdicts `tracejudge forget` cannot erase, for its output.
    retained_data: "Callable[[Settings], str | None]" = lambda _: None


class Command(NamedTuple):
    """A command of `tracejudge`: the module that holds it under a name, and its help text."""

    module: str
    help: str
    attribute: str = "command"


@dataclass(frozen=True)
class Table(Generic[T]):
    """A key of the configuration, or of a rule, that belongs to a feature or to a part of base.

    In the file and in variables it looks as a key of the core. If the folder of its feature is removed, it is unknown.
    """

    key: str  # The key in the file; the variable of one of the top level is `TRACEJUDGE_KEY`.
    type: Any  # The type of the value, or of each table if there are several.
    default: T  # The value if the key is absent.
    text: str  # The text of the reference page.
    is_named: bool = False  # Whether the value is tables by name, as `[key.NAME]`.
    # Types by what a named table has as `kind`, in place of ``type``. Each feature adds its own kinds.
    kinds: Mapping[str, Any] = field(default_factory=dict)
    is_secret: bool = False  # Whether hashes leave the value out.

    def read(self, settings: "ExtensibleTable") -> T:
        """Return the value in the settings or in a rule, or the default."""
        value: T = settings.tables.get(self.key, self.default)
        return value

    def with_value(self, settings: E, value: T) -> E:
        """Return settings or a rule with another value."""
        return structs.replace(settings, tables={**settings.tables, self.key: value})


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """The additions of one folder; everything is optional."""

    name: str  # The name of the folder.
    needs: tuple[str, ...] = ()  # Features without which this one is left out.
    keys: "type[KeySpace] | None" = None  # Its keys in Redis.
    # The package with its folder `scripts`, files of scripts for Redis; their names are unique.
    scripts: str | None = None
    # Commands by name; `judges NAME` is one of `tracejudge judges`. None is imported before it is called.
    commands: Mapping[str, Command] = field(default_factory=dict)
    tables: Sequence[Table[Any]] = ()  # Its tables and keys of the configuration.
    rule_keys: Sequence[Table[Any]] = ()  # Its keys of a rule.
    units: "Sequence[Unit]" = ()  # What rules may judge besides a trace.
    # Names that a rule may write as `model`, each with its models, of which the first one judges first.
    aliases: "Callable[[Settings], Mapping[str, tuple[str, ...]]] | None" = None
    # Checks its own settings, in every process; called with the settings.
    faults: "Callable[[Settings], Iterable[Fault]] | None" = None
    # Checks what names models, judges or rules, in processes that judge; called with the settings, which have no rules
    # if there are none to check, the configured judges by name, and the names of all judges.
    rule_faults: "Callable[[Settings, Mapping[str, Judge], frozenset[str]], Iterable[Fault]] | None" = None
    verdict_tags: "Callable[[Settings], Iterable[str]] | None" = None  # Tags of traces that verdicts carry.
    # Receivers of verdicts by name, whose addresses and certificates a worker uses.
    receivers: "Callable[[Settings], Mapping[str, Any]] | None" = None
    # Completes the settings from files of the feature, and yields faults of these; called with the settings, what was
    # read, and the names of all judges.
    complete_settings: "Callable[[Settings, ConfigSources, frozenset[str]], Faults[Settings]] | None" = None
    # Exporters by the name of their consumer group.
    exporters: "Callable[[Settings], Mapping[str, ExporterSpec]] | None" = None
    # Called once with settings, judges and metrics, in the main thread before any judge runs.
    prepare: "Callable[[Settings, Mapping[str, Judge], Metrics], None] | None" = None
    # Threads of one partition; the role of a thread, ingest or judge, says when it starts and stops.
    threads: "Callable[[PartitionContext], Sequence[ServiceThread]] | None" = None
    # Threads of a process, each with the store that it reads; they stop after those of partitions.
    process_threads: "Callable[[Settings, Metrics, Sequence[Store], Rules], Sequence[PartitionThread]] | None" = None
    # Functions that run once a minute for one partition.
    chores: "Callable[[Settings, Metrics, Store], Sequence[Callable[[], None]]] | None" = None
    ingest: Callable[[TraceHookContext], IngestHook | None] | None = None  # Takes part in reading the stream.
    assess: Callable[[TraceHookContext], Assessor | None] | None = None  # Answers evaluations in place of a model.
    # Stands between an evaluation and its model.
    wrap_model: Callable[[TraceHookContext], ModelWrapper | None] | None = None
    # Adds batches in the step that writes a verdict.
    after_verdict: Callable[[TraceHookContext], VerdictHook | None] | None = None
    # The ``MetricTable`` for the page of the worker. This and all below are full names, which are imported when they
    # are needed.
    metrics: str = ""
    page_metrics: str = ""  # The ``MetricTable`` of a process of its own, such as the gateway.
    watch: str = ""  # The watch of the active monitor; made with its parts, and run in order.
    warnings: str = ""  # Finds what settings allow and is probably a mistake, for `tracejudge lint` and `doctor`.
    checks: str = ""  # Returns the checks of `tracejudge doctor`; called with the settings and the first partition.
    eraser: str = ""  # Makes the ``Eraser`` of `tracejudge forget` for the run of each partition.
    # Estimates the work of a replay, for `tracejudge replay --dry-run`; called with settings, store, name, chooser, and
    # the two times in seconds between which traces are judged again. What it returns is shown as JSON, or by its
    # ``table`` for a period and its ``notes``; None if no trace is left.
    estimate: str = ""


@cache
def installed() -> tuple[Feature, ...]:
    """Import the features whose folders exist, and whose needs do, in the order in which their hooks run."""
    modules = import_module("worker.installed").MODULES
    present = (name for name in modules if find_spec(name.rpartition(".")[0]) is not None)
    features: list[Feature] = [import_module(name).FEATURE for name in present]
    while absent := {name for feature in features for name in feature.needs} - {feature.name for feature in features}:
        features = [feature for feature in features if absent.isdisjoint(feature.needs)]
    return tuple(features)


def is_installed(name: str) -> bool:
    """Return whether a feature is installed, so that another one may import it."""
    return any(feature.name == name for feature in installed())


def find_exporters(settings: "Settings") -> dict[str, ExporterSpec]:
    """Return the exporters of a configuration by name, which is also the name of a consumer group of the outbox."""
    retained = "Prometheus keeps counts, and exemplars with trace ids"
    prometheus = import_attribute("worker.core.export.prometheus.PrometheusExporter")
    exporters = {prometheus.exporter: ExporterSpec("export", prometheus, retained_data=lambda _: retained)}
    for feature in installed():
        if feature.exporters is not None:
            exporters |= feature.exporters(settings)
    return exporters


@cache
def installed_tables(attribute: str = "tables") -> Mapping[str, Table[Any]]:
    """Return what features have as `tables` or `rule_keys`, by key; those that name one key share it and its kinds."""
    tables: dict[str, Table[Any]] = {}
    for table in (table for feature in installed() for table in getattr(feature, attribute)):
        kinds = {**tables[table.key].kinds, **table.kinds} if table.key in tables else table.kinds
        tables[table.key] = replace(table, kinds=kinds)
    return tables


def import_attribute(name: str) -> Any:
    """Import what a feature names by its full name."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def build_hooks(factories: Iterable[Callable[[P], T | None] | None], context: P) -> tuple[T, ...]:
    """Call the factories that exist; return what they made."""
    made = (factory(context) for factory in factories if factory is not None)
    return tuple(hook for hook in made if hook is not None)


def collect_all(factories: Iterable[Callable[A, Iterable[T]] | None], *args: A.args, **kwargs: A.kwargs) -> list[T]:
    """Call the factories that exist; return everything that each of them made, in order."""
    return [made for factory in factories if factory is not None for made in factory(*args, **kwargs)]
