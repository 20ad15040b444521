"""The routes of the board. Pages are made on the server; without JavaScript all of them work."""

import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlencode

import jinja2
import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from judges.core.judge import JudgeFailedError
from judges.core.prompt import neutralise
from worker.base.lookup.feature import KEEP_LABELLED, MAX_LABELLED_BYTES
from worker.base.lookup.label_store import MAX_TEXT_CHARS, keep_trace, label_id
from worker.base.lookup.lookup import Dataset
from worker.base.lookup.verdict_filter import VerdictFilter, outcome_of
from worker.base.monitor.votes import read_votes
from worker.core.config.serving import UserKeys, hashed_user
from worker.core.config.settings import Settings
from worker.core.features import is_installed
from worker.core.queue.ledger import OutboxEntry
from worker.core.selection.sampling import Rules
from worker.core.selection.stream_entry import TraceEntry, read_entry
from worker.core.storage.client import Store, StoreError
from worker.features.board.access import Access, BoardMetrics, Guard, form_token, is_form_token
from worker.features.board.feature import BOARD
from worker.features.board.index import NEWEST_FIRST, VerdictIndex, condition, leading_score, place_of
from worker.features.board.labelling import KINDS, RATES, Kind, LabelQueue, Question, Queue, agreements
from worker.features.board.overview import OverviewThread
from worker.features.board.quality import DEFAULT_PERIOD, PERIODS, Row
from worker.features.board.series_page import read_cascades, read_chart, read_segments, read_trust
from worker.features.board.texts import ago
from worker.features.board.verdict_list import CHOICES, SINCE, AnswerRow, judge_tags, list_answers, read_selection
from worker.features.board.verdict_page import VerdictPages, as_json, summary
from worker.features.labels.answers import Answer, Opinion, of_label, read_answers, submit, tally

_PAGE: Final = 200
_MOST_SAVED: Final = 1_000
_MOST_RECENT: Final = 1_000
_HERE: Final = Path(__file__).parent
_OPINIONS: Final = {"pass": "pass", "fail": "fail", "cannot_tell": "cannot tell"}


class _PageError(Exception):
    """A page cannot be shown; the status and a text for the reader."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Board:
    """The pages, and what they need."""

    def __init__(
        self, store: Store, settings: Settings, access: Access, index: VerdictIndex, overview: OverviewThread
    ) -> None:
        self._store = store
        self._settings = settings
        self._access = access
        self._index = index
        self._overview = overview
        self._pages = VerdictPages(store, settings)
        self._queue = LabelQueue(store, index)
        self._user_keys = UserKeys(settings, store)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
        )
        self._templates.filters.update(plain=neutralise)
        self._templates.filters.update(outcome=outcome_of, leading=leading_score)
        self._templates.filters.update(ago=ago, signed=lambda points: f"{round(points):+d}".replace("-", "\u2212"))
        # Browsers keep these files for long: another content has another address.
        names = sorted(path for path in (_HERE / "static").iterdir() if path.is_file())
        digest = hashlib.blake2b(b"".join(path.read_bytes() for path in names), digest_size=6).hexdigest()
        self._templates.globals.update(static=f"/static/{digest}", links=bool(BOARD.read(settings).links))
        self._static = f"/static/{digest}"

    def app(self, metrics: BoardMetrics) -> Guard:
        """Return the application."""
        routes: list[BaseRoute] = [
            Route("/", self._guarded(self.overview_page)),
            Route("/series/{series_id}", self._guarded(self.series_page)),
            Route("/verdicts", self._guarded(self.verdicts_page)),
            Route("/verdicts.jsonl", self._guarded(self.dataset)),
            Route("/verdicts/{evaluation_id}", self._guarded(self.verdict_page)),
            Route("/funnel", self._guarded(self.funnel_page)),
            Route("/labels", self._guarded(self.labels_page)),
            Route("/labels", self.answer, methods=["POST"]),
            Route("/health", self.health),
            Mount(self._static, StaticFiles(directory=_HERE / "static")),
        ]
        if is_installed("mcp") and find_spec("mcp") is not None:
            from worker.features.mcp.server import Server  # noqa: PLC0415 - after the check that its package is there

            routes.append(Route("/mcp", Server(self._store, self._settings)))
        handlers = {404: self._not_found, 405: self._not_found}
        app = Starlette(routes=routes, exception_handlers=cast("Any", handlers))
        app.router.redirect_slashes = False  # a redirect goes to the host that the client names
        return Guard(app, self._access, metrics)

    # --- pages ---

    def overview_page(self, request: Request) -> Response:
        """Show what got worse, and all shares."""
        period, environment = _period(request), request.query_params.get("environment", "")
        overview = self._overview.overview(period)
        panels = [panel for panel in overview.panels if environment in {"", panel.row.series.environment}]
        references = {panel.row.reference for panel in panels if panel.row.change is not None}
        return self._page(
            request,
            "overview.html",
            overview=overview,
            themes=self._overview.themes,
            panels=panels,
            banners=[
                (banner, self._examples(banner.panel.row, 2), self._failing(banner.panel.row))
                for banner in overview.banners
                if banner.panel in panels
            ],
            # Of several judge models that give the same share.
            repeated=Counter((*panel.row.owner, panel.row.title) for panel in panels),
            reference=references.pop() if len(references) == 1 else "",
            runbook=BOARD.read(self._settings).runbook,
            period=period,
            periods=PERIODS,
            environment=environment,
            loading=not self._index.is_complete,
        )

    def series_page(self, request: Request) -> Response:
        """Show one series: its chart, its segments, and whether its judge can be trusted."""
        period, series_id = _period(request), request.path_params["series_id"]
        panels = self._overview.overview(period).panels
        versions = {each.id: panel for panel in panels for each in (*panel.row.former, panel.row.series)}
        panel, now = versions.get(series_id), time.time()
        if panel is None:
            raise _PageError(404, "This service has no verdicts of this judge in the period.")
        agreement, corrections = read_trust(self._store, panel.row)
        return self._page(
            request,
            "series.html",
            panel=panel,
            chart=read_chart(self._store, panel, period, now),
            segments=read_segments(self._store, panel.row, now),
            tally=agreement,
            corrections=corrections,
            cascades=read_cascades(self._store, panel.row, now),
            votes=read_votes(self._store, now - PERIODS[period][1], now, panel.row.series.__eq__),
            examples=self._examples(panel.row, 8),
            failing=self._failing(panel.row),
            period=period,
            periods=PERIODS,
        )

    def funnel_page(self, request: Request) -> Response:
        """Show where traces and evaluations went."""
        funnel = self._overview.funnel
        is_lossy = funnel is not None and any(name == "no_rule" for stage in funnel.traces for name, *_ in stage.losses)
        return self._page(request, "funnel.html", funnel=funnel, unmatched=self._unmatched() if is_lossy else [])

    def verdicts_page(self, request: Request) -> Response:
        """List answers with their verdicts, the newest first."""
        params = request.query_params
        selected, form, unknown = read_selection(params, self._index.names(), self._store, self._settings)
        answers = self._index.select_answers(selected, limit=_PAGE + 1, before=params.get("before", ""))
        query = {name: value for name, value in params.items() if value and name != "before"}
        older = ""
        if len(answers) > _PAGE:
            last = next(verdict.entry for verdict in answers[_PAGE - 1] if verdict.is_selected)
            older = f"/verdicts?{urlencode({**query, 'before': last})}"
        return self._page(
            request,
            "verdicts.html",
            rows=list(list_answers(self._index, self._store, self._settings, answers[:_PAGE])),
            form=form,
            unknown=unknown,
            is_filtered=any(query.values()) or bool(params.get("before")),
            older=older,
            saved=f"/verdicts.jsonl?{urlencode(query)}",
            choices=CHOICES,
            names=self._index.names(),
            loading=not self._index.is_complete,
        )

    def verdict_page(self, request: Request) -> Response:
        """Show one verdict with the text of its trace."""
        entry, params = self._entry(request), request.query_params
        verdict, whole, source = entry.verdict, bool(params.get("whole")), bool(params.get("source"))
        published = self._pages.trace(verdict, whole=whole)
        answers = self._index.select_answers(VerdictFilter(trace_ids=frozenset({verdict.trace_id})), limit=_PAGE)
        siblings = next(
            (one for one in answers if any(each.evaluation_id == verdict.evaluation_id for each in one)), []
        )
        messages, why = list[tuple[str, str]](), ""
        if published is not None:
            try:
                messages = self._pages.request(verdict, published.trace)
            except JudgeFailedError as error:
                why = str(error)
        return self._page(
            request,
            "verdict.html",
            entry=entry,
            verdict=verdict,
            summary=summary(verdict, None if published is None else published.trace),
            raw=as_json(verdict),
            trace=None if published is None else self._pages.page(verdict, published, source=source),
            is_source=source,
            messages=[(role, neutralise(text)) for role, text in messages],
            why=why,
            elsewhere=self._pages.links(verdict),
            whole=whole,
            tags=judge_tags(siblings, verdict.evaluation_id),
        )

    def dataset(self, request: Request) -> Response:
        """Send the selected traces as JSON lines."""
        selected, _, _ = read_selection(request.query_params, self._index.names(), self._store, self._settings)
        where, values = condition(selected)
        newest = f"SELECT trace_id FROM verdicts WHERE {where} ORDER BY {NEWEST_FIRST} LIMIT {_MOST_SAVED}"  # noqa: S608 - constants
        chosen = selected._replace(trace_ids=frozenset(name for (name,) in self._index.query(newest, values)))
        dataset = Dataset(self._store, self._settings, chosen, limit=_MOST_SAVED)

        def lines() -> Iterator[bytes]:
            for row in dataset.rows():
                yield msgspec.json.encode(row) + b"\n"

        name = f"tracejudge-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.jsonl"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return StreamingResponse(lines(), media_type="application/jsonl", headers=headers)

    def labels_page(self, request: Request) -> Response:
        """Ask the next question of the queue."""
        params = request.query_params
        user = self._annotator(request, params.get("as", ""))
        queue = _queue(params)
        answers = read_answers(self._store)
        skipped = frozenset(params.get("skip", "").split(",")[-1_000:]) - {""}
        question = self._chosen(params) or self._queue.next(queue, self._hash(user), answers, skipped)
        mine = [answer for of_label in answers.values() for answer in of_label if answer.annotator == self._hash(user)]
        last = max(mine, key=lambda answer: answer.answered_at, default=None)
        context: dict[str, Any] = {"question": question, "texts": None, "previous": None, "gone": False}
        if question is not None:
            published = self._pages.trace(question.entry.verdict, whole=bool(params.get("whole")))
            context["gone"] = published is None
            if published is not None:
                context["texts"] = self._pages.page(question.entry.verdict, published, explained=False)
            of_label = answers.get(question.label_id, ())
            context["previous"] = next((answer for answer in of_label if answer.annotator == self._hash(user)), None)
            context["asks"], context["passes"] = self._asked(question)
        of_queue = {
            name: of_label
            for name, of_label in answers.items()
            if queue.judge in {"", of_label[0].judge}
            and queue.service in {"", of_label[0].service}
            # Failures that somebody looked for say nothing of how often the judge is right.
            and (queue.kind != "random" or any(isinstance(answer.drawn, float) for answer in of_label))
        }
        query = {"kind": queue.kind, "service": queue.service, "judge": queue.judge, "as": params.get("as", "")}
        name = "" if question is None else question.label_id
        of_question = {} if question is None else {"answer": question.entry.verdict.evaluation_id, "whole": "1"}
        return self._page(
            request,
            "labels.html",
            queue=queue,
            rate=self._queue.rate(queue),
            rates=RATES,
            kinds=KINDS,
            names=self._index.names(),
            user=user,
            asked_as=params.get("as", ""),
            token=form_token(self._user_keys.current(), user),
            tally=tally(of_queue),
            corrections=self._queue.corrections(queue),
            agreements=agreements(mine),
            skip=f"/labels?{urlencode({**query, 'rate': params.get('rate', ''), 'skip': ','.join([*skipped, name])})}",
            search="" if params.get("whole") else f"/labels?{urlencode({**query, **of_question})}",
            back=f"/labels?{urlencode({**query, 'answer': last.evaluation_id})}" if last else "",
            last=last if params.get("done") else None,
            opinions=_OPINIONS,
            loading=not self._index.is_complete,
            **context,
        )

    async def answer(self, request: Request) -> Response:
        """Store an answer; the reply comes after Redis has it."""
        length = request.headers.get("content-length", "")
        if not length.isdigit() or int(length) > 64 * 1024:
            return self._error(request, 413, "The form is too large.")
        form = dict(parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True))
        return await run_in_threadpool(self._guarded(lambda inner: self._stored(inner, form)), request)

    def _stored(self, request: Request, form: Mapping[str, str]) -> Response:
        user = self._annotator(request, form.get("as", ""))
        if not is_form_token(form.get("token", ""), self._user_keys.current(), user):
            raise _PageError(
                403, "This form is not of this board, or of another user. Go back, reload, and answer again."
            )
        opinion = form.get("opinion", "")
        if opinion not in _OPINIONS:
            raise _PageError(400, "Choose pass, fail or cannot tell.")
        entry = self._index.find(form.get("evaluation_id", ""))
        metric, score = ("", None) if entry is None else leading_score(entry.verdict)
        if entry is None or score is None or score.passed is None:
            raise _PageError(404, "This verdict is no longer in the outbox, so the answer was not stored.")
        verdict = entry.verdict
        name = label_id(verdict.trace_id, verdict.span_id or "", verdict.judge, metric)
        # What was drawn stays so, with its time, when somebody changes the answer or gives a second opinion.
        drawn = next((each for each in of_label(self._store, name) if isinstance(each.drawn, float)), None)
        place = place_of(verdict)
        # Not what the form says alone: only the random order gives a question its place.
        is_drawn = drawn is None and place is not None and form.get("drawn") == str(place)
        answer = Answer(
            trace_id=verdict.trace_id,
            judge=verdict.judge,
            metric=metric,
            opinion=cast("Opinion", opinion),
            drawn=drawn.drawn if drawn is not None else place if is_drawn and place is not None else "queue",
            reached=drawn.reached if drawn is not None else self._queue.reached() if is_drawn else None,
            annotator=self._hash(user),
            answered_at=self._store.now_ms() / 1000,
            evaluation_id=verdict.evaluation_id,
            judge_version=verdict.judge_version,
            judge_model=verdict.judge_model,
            service=verdict.service,
            judged=score.passed,
            span_id=verdict.span_id or "",
            note=form.get("note", "").strip()[:MAX_TEXT_CHARS],
            excerpt=form.get("excerpt", "").strip()[:MAX_TEXT_CHARS],
            session_id=verdict.session_id,
            user_id=verdict.user_id,
        )
        published = self._pages.trace(verdict) or self._pages.trace(verdict, whole=True)
        if published is not None and KEEP_LABELLED.read(self._settings) and published.source != "label":
            # Before the label: one without a copy cannot be exported as a whole.
            keep_trace(self._store, published.trace, MAX_LABELLED_BYTES.read(self._settings))
        submit(self._store, answer, verdict)
        kept = {name: form.get(name, "") for name in ("kind", "service", "judge", "rate", "as", "skip")}
        query = urlencode({**{name: value for name, value in kept.items() if value}, "done": answer.label_id})
        return RedirectResponse(f"/labels?{query}", 303)

    def health(self, _request: Request) -> Response:
        """Say whether the whole outbox was read."""
        return Response("ready\n" if self._index.is_complete else "loading\n", media_type="text/plain")

    # --- parts ---

    def _entry(self, request: Request) -> OutboxEntry:
        entry = self._index.find(request.path_params["evaluation_id"])
        if entry is None:
            raise _PageError(404, "This verdict is not in the outbox: it was trimmed, forgotten, or never written.")
        return entry

    def _failing(self, row: Row) -> tuple[str, int]:
        """Return the address of the failing verdicts of a row, and their number there."""
        since = time.strftime(SINCE, time.gmtime(row.since))
        query = {"service": row.series.service, "judge": row.series.judge, "outcome": "failed", "since": since}
        selection = read_selection(QueryParams(query), self._index.names(), self._store, self._settings)
        where, values = condition(selection.selected)
        ((number,),) = self._index.query(f"SELECT count(*) FROM verdicts WHERE {where}", values)  # noqa: S608 - constants
        return f"/verdicts?{urlencode({name: value for name, value in query.items() if value})}", number

    def _examples(self, row: Row, most: int) -> list[AnswerRow]:
        """Read the newest failing answers of a row."""
        selected = VerdictFilter((row.series.service,), (row.series.judge,), outcomes=("failed",))
        answers = self._index.select_answers(selected, limit=4 * most)
        rows = list_answers(self._index, self._store, self._settings, answers)
        return [answer for answer in rows if answer.environment == row.series.environment][:most]

    def _unmatched(self) -> list[tuple[str, int]]:
        """Return the services of the newest traces that match no rule, with their number among the newest 1,000."""
        rules, services = Rules(self._settings, self._pages.graders), Counter[str]()
        for store in self._store.reachable:
            key = store.keys.traces
            for entry in store.call(lambda client: client.xrevrange(key, count=_MOST_RECENT)):  # noqa: B023
                read = read_entry(entry, self._settings.max_trace_bytes)
                if isinstance(read, TraceEntry) and not rules.matching(read.trace).rules:
                    services[read.trace.service] += 1
        return services.most_common(10)

    def _chosen(self, params: QueryParams) -> Question | None:
        """Return the question of an evaluation that a link names."""
        entry = self._index.find(params["answer"]) if params.get("answer") else None
        score = None if entry is None else leading_score(entry.verdict)[1]
        if entry is None or score is None or score.passed is None:
            return None
        return Question(entry, "queue")  # The random order may come to it later.

    def _asked(self, question: Question) -> tuple[str, str]:
        """Return the judge's question, and the rule by which its metric passes; empty if they are not known."""
        judge = self._pages.judge(question.entry.verdict.judge, question.entry.verdict.judge_model)
        metrics = () if judge is None else judge.metrics
        rule = next((metric.passes for metric in metrics if metric.name == question.metric), "")
        return "" if judge is None else judge.asks, rule

    def _annotator(self, request: Request, name: str) -> str:
        """Return the name of the user, or the name that the form gives if nobody has to sign in."""
        user: str = request.state.user
        return user or name.strip()[:100] or "anonymous"

    def _hash(self, user: str) -> str:
        return hashed_user(user, self._user_keys.current()) or ""

    def _page(self, request: Request, name: str, **context: Any) -> Response:
        """Render a page, with an ETag by which polling costs no transfer."""
        text = self._templates.get_template(name).render(
            path=request.url.path, user=context.pop("user", request.state.user), **context
        )
        body = text.encode("utf-8", "replace")
        tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        return Response(body, media_type="text/html; charset=utf-8", headers={"ETag": tag})

    def _error(self, request: Request, status: int, text: str) -> Response:
        page = self._templates.get_template("error.html").render(
            path=request.url.path, user=getattr(request.state, "user", ""), status=status, text=text
        )
        return Response(page, status, media_type="text/html; charset=utf-8")

    def _not_found(self, request: Request, _error: Exception) -> Response:
        return self._error(request, 404, "There is no such page.")

    def _guarded(self, make: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """Show an error as a page, in words."""

        def answer(request: Request) -> Response:
            try:
                return make(request)
            except _PageError as error:
                return self._error(request, error.status, str(error))
            except StoreError as error:
                return self._error(request, 503, f"Redis does not answer ({error}). Nothing was stored.")

        return answer


def _period(request: Request) -> str:
    period = request.query_params.get("period", "")
    return period if period in PERIODS else DEFAULT_PERIOD


def _queue(params: QueryParams) -> Queue:
    kind = params.get("kind", "random")
    rate = 0.0
    with contextlib.suppress(ValueError):
        rate = float(params.get("rate", ""))
    kind = kind if kind in KINDS else "random"
    return Queue(cast("Kind", kind), params.get("service", "")[:200], params.get("judge", "")[:200], rate)
