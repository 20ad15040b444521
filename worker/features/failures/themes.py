"""What failing verdicts have in common: themes of reasons by their words, or by a model that is asked once an hour.

A reason that was not compared belongs to the group that its words are nearest to, in both windows alike.
"""

import asyncio
import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Any, Final

import click
import msgspec

from judges.agreement.arrays import fold
from judges.agreement.intervals import Interval, difference
from judges.agreement.shares import estimate_share
from judges.calling.evaluation import evaluate
from judges.core.judge import RESULT
from judges.core.model import CallTotals, ChatModel, ChatRequest
from judges.core.prompt import neutralise, render
from judges.core.verdict import Assessment
from judges.custom import define
from judges.endpoints.client import offline_model
from judges.models.provider import ModelSettingsError
from judges.models.registry import build, most_tokens
from judges.parsing.sentences import content_words
from judges.requests.redaction import Redaction
from tracejudge import Trace
from worker.base.commands.options import JSON, OUT, PATTERNS, REDIS, connect, plain, print_json
from worker.base.lookup.lookup import scan_verdicts
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.base.monitor.series import DAY_S, HOUR_S
from worker.core.config.settings import NANO, Settings
from worker.core.storage.client import Store
from worker.features.failures.feature import FAILURES, FailuresKeys

_ALIKE: Final = 0.25  # The least average similarity of groups that are joined.
_NEAR: Final = 0.15  # That of a further reason to its group.
_HEAVIEST: Final = math.log(5)  # Words of fewer than a fifth weigh no more: most of them are of the subject.
_ALL: Final = VerdictFilter()
_TASK: Final = """\
Each document of {{ context }} is the reason why an answer failed a check. Which have their cause in common? Name \
at most ten such themes, the largest first: causes that somebody could fix, no subjects of questions. Write a theme as \
`invents a source: 2, 5, 11`: two to eight words that quote nothing and name no person, product or figure, a colon, \
and the ranks of its documents, two or more. A document has one theme, or none."""
_JUDGE: Final = define("themes", {"instructions": _TASK, "result": "list", "score_cut": True})
Answer = tuple[str, dict[str, list[str]]]  # Of a model: its name and cost, and names of groups with hashes of reasons.
Vector = Mapping[str, float]


@dataclass(frozen=True)
class Failure:
    """A failing verdict of live traffic; its reason is redacted, and empty unless `export_explanations` is set."""

    evaluation_id: str
    trace_id: str
    service: str
    judge: str
    session: str  # Failures of a conversation or trace are not independent.
    weight: float
    text: str


@dataclass(frozen=True)
class Theme:
    """Failures that are alike: their share of all, and its change since the window before, if that had failures."""

    name: str
    count: int
    share: Interval
    change: Interval | None
    examples: list[Failure]


@dataclass(frozen=True)
class Themes:
    """The themes of a window, the largest first; how many verdicts failed then and before."""

    until: float  # In seconds since the epoch.
    failures: int
    before: int
    by: str  # `words`, perhaps with why it was no model, or a model with the cost of its answer.
    themes: list[Theme]


def read_failures(store: Store, settings: Settings, until: float, hours: int, chosen: VerdictFilter) -> list[Failure]:
    """Read the newest failing verdicts of some hours, at most 4,000."""
    redaction, failures = Redaction.from_settings(settings.redact), list[Failure]()
    selected = chosen._replace(origin="live", outcomes=("failed",), since_ms=int(1000 * (until - hours * HOUR_S)))
    found = scan_verdicts(store, selected._replace(until_ms=int(1000 * until) - 1))
    for verdict in (entry.verdict for entry in islice(found, 4_000)):
        reasons = (verdict.explanation(score) for score in verdict.scores if score.passed is False)
        text = " ".join(next(filter(None, reasons), "")[:5_000].split())
        text = neutralise(redaction.text(text) if redaction is not None else text)[:500]
        names = verdict.evaluation_id, verdict.trace_id, verdict.service, verdict.judge
        failures.append(Failure(*names, verdict.session_id or verdict.trace_id, verdict.weight, text))
    return failures


def find_themes(
    store: Store, settings: Settings, chosen: VerdictFilter = _ALL, hours: int = 24, *, writes: bool = True
) -> Themes:
    """Group the failing verdicts of the last hours, and compare them with as many before; ask a model if ``writes``."""
    until, answer = store.now_ms() / 1000, None
    asks = FAILURES.read(settings).model is not None and hours == 24  # noqa: PLR2004 - a day
    if asks:
        until = until // HOUR_S * HOUR_S  # Whole hours, so that all who look within one see the same.
    failures = read_failures(store, settings, until, hours, chosen)
    before = read_failures(store, settings, until - hours * HOUR_S, hours, chosen)
    if asks:
        shown = list(_counts(failures))[:150] if writes and chosen == _ALL else []
        answer = _read_answer(store.first, settings, int(until // HOUR_S), shown)
        known = {_hash(failure.text) for failure in failures}
        if answer is not None and answer[1] and all(map(known.isdisjoint, answer[1].values())):
            answer = "words; the model's themes are of other verdicts", {}
    themes = group(failures, before, answer, shows_texts=settings.export_explanations)
    return Themes(until, len(failures), len(before), "words" if answer is None else answer[0], themes)


def group(
    failures: Sequence[Failure], before: Sequence[Failure], answer: Answer | None = None, *, shows_texts: bool
) -> list[Theme]:
    """Return the themes of failures, by a model's answer if there is one."""
    weights = _weights(counts := _counts(failures))
    groups = [("", texts) for texts in _join(list(counts)[:100], weights)]
    if answer is not None and answer[1]:
        known = {_hash(text): text for text in counts}
        groups = [(name, [known[each] for each in hashes if each in known]) for name, hashes in answer[1].items()]
    groups = sorted(groups, key=lambda each: -sum(map(counts.__getitem__, each[1])))[:10]
    means, members = [_mean(texts, weights) for _, texts in groups], [set(texts) for _, texts in groups]
    for text in {failure.text for failure in (*failures, *before)}.difference(*members):
        vector = _mean((text,), weights)
        alike, place = max(((_dot(vector, mean), -at) for at, mean in enumerate(means)), default=(0.0, 0))
        if alike >= _NEAR:
            members[-place].add(text)
    themes = []
    for (name, _), mean, texts in zip(groups, means, members, strict=True):
        inside = [failure for failure in failures if failure.text in texts]
        share, earlier = _share(failures, texts), _share(before, texts)
        if share is not None and len(inside) > 1:
            change = None if earlier is None else difference(share, earlier)
            newest = list({failure.trace_id: failure for failure in reversed(inside)}.values())[:-4:-1]
            examples = [failure if shows_texts else replace(failure, text="") for failure in newest]
            themes.append(Theme(name or _name(mean, texts) or "no words", len(inside), share, change, examples))
    themes = sorted(themes, key=lambda theme: (-theme.share.value, theme.name))
    # A name has words of reasons.
    return themes if shows_texts else [replace(each, name=f"theme {rank}") for rank, each in enumerate(themes, 1)]


def _hash(*texts: str) -> str:
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "replace"), digest_size=8).hexdigest()


def _counts(failures: Sequence[Failure]) -> dict[str, int]:
    """Count reasons, the most frequent first, else in an order that says nothing of them."""
    counts = Counter(failure.text for failure in failures if failure.text)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], _hash(item[0]))))


def _weights(counts: Mapping[str, int]) -> Vector:
    """Weigh the words that several failures share: one that all have says nothing."""
    total, words = sum(counts.values()), Counter[str]()
    for text, count in counts.items():
        words.update(dict.fromkeys(filter(str.isalpha, content_words(text)), count))
    return {w: min(math.log((total + 1) / n), _HEAVIEST) for w, n in words.items() if n >= max(2, total // 50)}


def _mean(texts: Sequence[str], weights: Vector) -> Vector:
    """Return the mean of reasons, each a vector of length 1 of the weights of its words."""
    mean: dict[str, float] = {}
    for text in texts:
        words = [word for word in sorted(content_words(text)) if word in weights]
        length = math.hypot(*map(weights.__getitem__, words)) * len(texts)
        for word in words:
            mean[word] = mean.get(word, 0.0) + weights[word] / length
    return mean


def _dot(one: Vector, other: Vector) -> float:
    return sum(weight * other[word] for word, weight in one.items() if word in other)


def _join(texts: Sequence[str], weights: Vector) -> list[list[str]]:
    """Join the two groups whose members are most alike on average, as long as two are alike enough."""
    groups = {number: [text] for number, text in enumerate(texts)}
    means = {number: _mean(group, weights) for number, group in groups.items()}
    pairs = {(one, other): _dot(means[one], means[other]) for one, other in combinations(means, 2)}
    while pairs:
        alike, (one, other) = max((alike, pair) for pair, alike in pairs.items())
        if alike < _ALIKE:
            break
        groups[one] += groups.pop(other)
        means[one] = _mean(groups[one], weights)
        pairs = {pair: alike for pair, alike in pairs.items() if other not in pair}
        changed = [(min(one, number), max(one, number)) for number in groups if number != one]
        pairs |= {pair: _dot(means[pair[0]], means[pair[1]]) for pair in changed}
    return list(groups.values())


def _name(mean: Vector, texts: Collection[str]) -> str:
    """Name a group by its heaviest words, in the form that is most frequent."""
    tokens = Counter(token for text in sorted(texts) for token in re.findall(r"[^\W\d_]+", text.lower()))
    forms = {word: token for token, _ in reversed(tokens.most_common()) for word in content_words(token)}
    return ", ".join(forms.get(word, word) for word in sorted(mean, key=lambda word: (-mean[word], word))[:4])


def _share(failures: Sequence[Failure], texts: Collection[str]) -> Interval | None:
    """Return the share of failures with one of these reasons, by the weights of verdicts; None without failures."""
    sessions = [(failure.service, failure.session) for failure in failures]
    inside = [failure.text in texts for failure in failures]
    estimate = estimate_share(fold(inside, [failure.weight for failure in failures], sessions))
    return None if estimate is None else estimate.interval


def _read_answer(store: Store, settings: Settings, hour: int, texts: list[str]) -> Answer | None:
    """Return what the model made of the day before an hour; it is asked with texts unless somebody has in this hour."""
    key, asked = FailuresKeys(store.keys.prefix).failures(hour // 24), _hash(str(hour), *texts)
    if len(texts) > 1 and not store.call(lambda client: client.hexists(key, str(hour))):
        try:
            model = build(settings.models[FAILURES.read(settings).model or ""], os.environ, settings.proxy)
        except ModelSettingsError as error:
            return f"words; the model cannot be asked: {error}", {}
        if store.call(lambda client: client.hsetnx(key, str(hour), asked)):
            answer = msgspec.json.encode(_ask(store, settings, key, texts, model))
            store.call(lambda client: (client.hset(key, asked, answer), client.expire(key, 2 * DAY_S)))
    raw = store.call(lambda client: client.hget(key, client.hget(key, str(hour)) or ""))
    return msgspec.json.decode(raw, type=Answer) if raw else None


def _ask(store: Store, settings: Settings, key: str, texts: list[str], client: ChatModel) -> Answer:
    """Ask the model which reasons are alike; without groups if it gave no answer, or the budget does not suffice."""
    options, assessment = FAILURES.read(settings), Assessment("unscored", "over_budget")
    model = settings.models[options.model or ""]
    trace = Trace(trace_id="themes", service="themes", output="", context=[text[:300] for text in texts])
    request = ChatRequest(render(_JUDGE.prompts(trace)[0]), schema_name="", schema={}, heuristic=dict)
    # An answer that cannot be read is asked for once more.
    most = 0.0 if model.price is None else 2 * NANO * model.price.cost_usd(*most_tokens(request, model))

    async def assess() -> Assessment:
        async with aclosing(offline_model(client, tries=2)) as endpoint:
            return await evaluate(_JUDGE, trace, endpoint, deadline_s=45.0)

    if store.call(lambda client: client.hincrby(key, "spent", round(most))) <= options.budget * NANO:
        assessment = asyncio.run(assess())
    left, groups, result = dict(enumerate(texts, 1)), dict[str, list[str]](), assessment.details.get(RESULT)
    for theme in result if isinstance(result, list) else ():
        name, _, numbers = theme.rpartition(":")
        for number in map(int, re.findall(r"\d{1,4}", numbers)):
            if (text := left.pop(number, None)) is not None:
                groups.setdefault(neutralise(" ".join(name.split()))[:80], []).append(_hash(text))
    if not groups:
        return f"words; the model gave no themes: {assessment.reason or 'none'}", groups
    cost = CallTotals().plus(assessment.calls, model.price).cost_usd
    return model.judge_model + ("" if cost is None else f" for {cost:.4f} USD"), groups


@click.command("failures")
@PATTERNS
@click.option("--hours", type=click.IntRange(1, 720), default=24, show_default=True, metavar="N", help="The window.")
@REDIS
@JSON
def command(*, hours: int, config: str | None, redis_url: str | None, as_json: bool, **chosen: Any) -> None:
    """Group failing verdicts of live traffic into at most ten themes, by their words or by the model of `[failures]`.

    A theme has its share of all failing verdicts with a 95 % interval, the change since as many hours before, and three
    examples. Their reasons are printed if `export_explanations` is set; `tracejudge show` prints them, too.

    Exit code 0 on success, 1 if no verdict of the window fails, 2 on wrong usage.
    """
    settings, store = connect(config, redis_url)
    found = find_themes(store, settings, VerdictFilter(**chosen), hours)
    if as_json:
        print_json(found)
        return
    if not found.failures:
        raise click.ClickException(f"no verdict of these {hours} hours fails")
    OUT.print(f"{found.failures:,} failing verdicts in {hours} hours, {found.before:,} before; grouped by {found.by}")
    for theme in found.themes:
        change = theme.change.percent if theme.change else "unknown"
        OUT.print(f"\n[bold]{plain(theme.name)}[/bold] {theme.share.percent}, change {change}", highlight=False)
        for example in theme.examples:
            OUT.print(
                "  " + plain(f"{example.trace_id} {example.service} {example.judge} {example.text}"), soft_wrap=True
            )
