"""`tracejudge show`: a trace as text, with its verdicts."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

import click
import msgspec
from rich.markup import escape

from judges.core.judge import JudgeFailedError
from judges.core.prompt import neutralise
from judges.core.verdict import Verdict
from judges.registry import load_judges
from judges.requests.redaction import Redaction
from tracejudge import Trace
from worker.base.commands.options import JSON, OUT, REDIS, amount, connect, plain, print_json
from worker.base.lookup.explanation import OUTCOMES, Explanation, as_text, explain
from worker.base.lookup.label_store import read_labels
from worker.base.lookup.lookup import FoundTrace, TraceLookup, TraceNotFoundError, scan_verdicts
from worker.base.lookup.verdict_filter import VerdictFilter, outcome_of
from worker.core.config.graders import Graders
from worker.core.config.settings import Settings
from worker.core.features import TraceHookContext, make_ingest_hooks
from worker.core.queue.ledger import Ledger, OutboxEntry
from worker.core.selection.sampling import Rules, Sampler, position
from worker.core.storage.client import Store

_STYLES: Final = {
    "passed": "green",
    "failed": "red",
    "scored": "cyan",
    "abstained": "yellow",
    "unscored": "yellow",
    "dead": "magenta",
}
_LETTER_STYLES: Final = {"S": "green", "U": "red", "C": "red bold", "N": ""}
_ORIGINS: Final = {
    "live": "sampled",
    "late_feedback": "chosen because of late negative feedback, probability",
    "replay": "chosen by a replay, share",
    "session_update": "the conversation went on after its first verdict; sampled",
    "repeat": "repeats another verdict; probability",
    "canary": "a trace of the canary; probability",
}
_MAX_CHARS: Final = 2_000


@click.command("show")
@click.argument("trace_id", metavar="TRACE_ID")
@click.option("--whole", is_flag=True, help=f"Print whole texts, not only their first {_MAX_CHARS:,} characters.")
@REDIS
@JSON
def command(trace_id: str, *, whole: bool, config: str | None, redis_url: str | None, as_json: bool) -> None:
    """Print a trace with its verdicts; the first 6 characters of TRACE_ID are enough where they mean one trace.

    Each sentence of the answer has a letter: S supported, U unsupported, C contradictory, N needs no support. Texts
    are redacted by `[redact]`. Verdicts come from the outbox; the text is in the stream until it is trimmed, and with
    dead letters and labels.

    Exit code 0 on success, 1 if no trace has the id or several begin with it, 2 on wrong usage.

    \b
    Examples:
      tracejudge show 4bf92f
      tracejudge show 4bf92f3577b34da6a3ce929d0e0e4736 --json
    """  # noqa: D301 - click's mark for lines that stay as they are
    settings, store = connect(config, redis_url)
    lookup = TraceLookup(store, settings)
    name = lookup.resolve(trace_id)
    entries = list(scan_verdicts(store, VerdictFilter(trace_ids={name}), newest_first=False))
    published = lookup.find({name}).get(name, [])
    labels = [item.label for item in read_labels(store, lambda label: label.trace_id == name)]
    if not (entries or published or labels):
        raise TraceNotFoundError(f"{name}: the trace and its verdicts were trimmed or erased meanwhile")
    redaction = Redaction.from_settings(settings.redact)
    if redaction is not None:
        published = [copy._replace(trace=redaction.trace(copy.trace)) for copy in published]
    graders = Graders(settings, load_judges(settings.judges))
    explained = [(entry, _explanation(graders, entry.verdict, published)) for entry in entries]
    reasons = list(_explain_rules(settings, store, graders, published))
    if as_json:
        print_json(
            {
                "trace_id": name,
                "traces": [
                    {"found_in": copy.source, "published_ms": copy.published_ms, "trace": copy.trace}
                    for copy in published
                ],
                "verdicts": [
                    {
                        "outcome": outcome_of(entry),
                        "verdict": entry.verdict,
                        "explanation": None if explanation is None else _to_json(explanation),
                    }
                    for entry, explanation in explained
                ],
                "rules": reasons,
                "labels": labels,
            }
        )
        return
    most = sys.maxsize if whole else _MAX_CHARS
    _line(f"trace {name}", "bold")
    for copy in published:
        _print_trace(copy, most)
    if not published:
        _line("The text of the trace is no longer in the stream; copies are kept with labels only.", "yellow")
    for reason in reasons:
        _line(reason, "dim")
    if not entries:
        _line("No verdict in the outbox: the trace was not sampled, waits for its judge, or its verdicts were trimmed.")
    for entry, explanation in explained:
        _print_verdict(entry, explanation)
    for label in labels:
        by = f" by {label.annotator}" if label.annotator else ""
        result = "pass" if label.passed else "fail"
        _line(f"label{by}: {label.metric} {result}{f' - {label.comment}' if label.comment else ''}", "cyan")


def _explanation(graders: Graders, verdict: Verdict, published: Sequence[FoundTrace]) -> Explanation | None:
    """Explain a verdict by the text of its span; None if the text is gone, or is a conversation."""
    trace = next((publication.trace for publication in published if publication.trace.span_id == verdict.span_id), None)
    if trace is None or "session" in verdict.details:
        return None
    try:
        return explain(verdict, trace, graders.judge_form(verdict.judge, verdict.judge_model))
    except JudgeFailedError:
        return None


def _explain_rules(
    settings: Settings, store: Store, graders: Graders, published: Sequence[FoundTrace]
) -> Iterator[str]:
    rules = Rules(settings, graders)
    sampler = Sampler(rules, make_ingest_hooks(TraceHookContext(settings, None, Ledger(store, settings), rules)))
    rates = {rule.name: rule.rate for rule in settings.rules}
    for publication in published[:1]:
        at = position(publication.trace.trace_id, settings.sampling_key)
        tallies = sampler.sample(publication.trace).rules
        for tally in tallies:
            chosen = "chosen" if tally.chosen else "not chosen"
            yield f"rule {tally.rule}: rate {rates.get(tally.rule, 0):g}, position of the trace {at:.4f}: {chosen}"
        if not tallies:
            yield "no rule matches this trace"


def _to_json(explanation: Explanation) -> dict[str, object]:
    return {
        "same_version": explanation.same_version,
        "sentences": [
            {**part._asdict(), "outcome": OUTCOMES[part.letter], "evidence": [row._asdict() for row in part.evidence]}
            for part in explanation.sentences
        ],
        "document_sentences": [part._asdict() for part in explanation.document_sentences],
        "documents": [result._asdict() for result in explanation.documents],
    }


def _line(text: str, style: str = "") -> None:
    OUT.print(escape(neutralise(text)), style=style, soft_wrap=True)


def _text(title: str, text: str, most: int) -> None:
    cut = f" […{len(text) - most:,} more characters: --whole]" if len(text) > most else ""
    OUT.print(f"[bold]{title}[/bold] {escape(neutralise(text[:most]))}{cut}", soft_wrap=True)


def _print_trace(published: FoundTrace, most: int) -> None:
    trace: Trace = published.trace
    when = "" if published.published_ms is None else f", published {_time(published.published_ms / 1000)}"
    names = (("environment", trace.environment), ("release", trace.release), ("name", trace.name))
    ids = (("model", trace.model), ("session", trace.session_id), ("user", trace.user_id))
    details = "".join(f", {name} {value}" for name, value in (*names, *ids) if value)
    span = f", span {trace.span_id}" if trace.span_id else ""
    _line(f"service {trace.service}{span}{details}{when} (text from the {published.source})", "dim")
    if trace.tags:
        _text("tags:", ", ".join(f"{name}={value}" for name, value in sorted(trace.tags.items())), most)
    for message in trace.messages or ():
        if message.content:
            _text(f"{plain(message.role)}:", message.content, most)
    if trace.input:
        _text("question:", trace.input, most)
    for rank, document in enumerate(trace.context or (), 1):
        text, name = (document, None) if isinstance(document, str) else (document.text, document.id)
        _text(f"document {rank}{f' ({plain(name)})' if name else ''}:", text, most)
    for call in trace.tool_calls or ():
        _text(f"tool {plain(call.name)}:", msgspec.json.encode(call.arguments).decode(), most)
        if call.error or call.result is not None:
            _text("  error:" if call.error else "  result:", call.error or as_text(call.result), most)
    _text("answer:", trace.output, most)
    if trace.error:
        _text("error:", trace.error, most)
    if trace.feedback:
        _text("feedback:", f"{trace.feedback.score} {trace.feedback.comment or ''}", most)


def _print_verdict(entry: OutboxEntry, explanation: Explanation | None) -> None:
    verdict, outcome = entry.verdict, outcome_of(entry)
    scores = ", ".join(
        ("" if score.metric == verdict.judge else f"{score.metric} ")
        + (score.label or f"{score.value:.2f}")
        # A single score passes or fails as its verdict, which is named before it.
        + ("" if score.passed is None or len(verdict.scores) == 1 else " pass" if score.passed else " fail")
        + ("" if score.probability is None else f" (probability {score.probability:.2f})")
        for score in verdict.scores
    )
    OUT.print()
    result = scores or verdict.reason or outcome
    OUT.print(
        f"[bold]{plain(verdict.judge)}[/bold] [{_STYLES[outcome]}]{outcome}[/{_STYLES[outcome]}]: {plain(result)}",
        soft_wrap=True,
    )
    for text in (verdict.rationale, verdict.note):
        if text:
            _line(f"  {text}")
    if verdict.without_images:
        _line(f"  {verdict.without_images}", "yellow")
    if isinstance(cut := verdict.details.get("left_out"), dict):
        _line(f"  left out to fit the model's context: {', '.join(f'{cut[name]} of {name}' for name in cut)}", "yellow")
    for part in () if explanation is None else explanation.sentences:
        _line(f"  {part.letter}  {part.text}" + (f" ({part.note})" if part.note else ""), _LETTER_STYLES[part.letter])
        for row in part.evidence:
            ranks = ", ".join(str(rank) for rank in sorted({at.document + 1 for at in row.places}))
            where = f"document {ranks}" if ranks else "the documents"
            place = f"found in {where}" if row.found else "not in the documents"
            _line(f"     evidence {place}: {row.text}", "dim")
    for marked in () if explanation is None else explanation.document_sentences:
        letters = f"{'R' if marked.relevant else ' '}{'U' if marked.used else ' '}"
        _line(f"  {letters} {marked.text}" + (f" ({marked.note})" if marked.note else ""), "dim")
    for result_of in () if explanation is None else explanation.documents:
        place = {True: "yes", False: "no", None: "unknown"}[result_of.passed]
        _line(f"  document {result_of.rank} {result_of.span}: {place} {result_of.rationale}".rstrip(), "dim")
    if explanation is not None and not explanation.same_version:
        _line("  the installed judge has another version: sentences may be cut otherwise", "yellow")
    cost = "unknown cost" if verdict.cost_usd is None else f"{verdict.cost_usd:.6g} USD"
    tokens = f"{verdict.input_tokens:,} + {verdict.output_tokens:,} tokens"
    waited_s = verdict.duration_s - verdict.seconds
    waited = f" and {waited_s:.2f} s of waiting" if waited_s >= 0.05 else ""  # noqa: PLR2004 - a trace needs this between calls
    sampled = f"{_ORIGINS[verdict.origin]} {verdict.probability:g}"
    _line(
        f"  {_time(verdict.started_at)}, {verdict.seconds:.2f} s{waited}, {amount(verdict.attempts, 'attempt')}, "
        f"{cost}, {tokens}; {sampled}; by {verdict.judge_model}, version {verdict.judge_version[:8]}; "
        f"evaluation {verdict.evaluation_id}",
        "dim",
    )


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
