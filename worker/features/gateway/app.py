"""The routes of the gateway, as an ASGI application."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker.core.storage.client import StoreError, StoreFullError
from worker.features.gateway.admission import (
    Access,
    Bodies,
    Client,
    Form,
    GatewayMetrics,
    Losses,
    RefusedError,
    form_of,
    full,
    status_reply,
)
from worker.features.gateway.gathering import Gatherers
from worker.features.gateway.instrumentations import Instrumentations
from worker.features.gateway.intake import Encoder, Intake, read_intake
from worker.features.gateway.otlp import Request as OtlpRequest
from worker.features.gateway.otlp import read_request, reply_content
from worker.features.gateway.publishing import Publisher

log = structlog.get_logger("tracejudge.gateway")
_ANSWER_S: Final = 10.0  # How long a request waits for Redis; then the client sends it again.
_LARGE_BYTES: Final = 128 * 1024
"""Larger bodies are read beside the event loop, and only two at once, so that others have threads left."""
_LATE: Final = "Redis does not answer; send this again later"
_BUSY: Final = "the gateway is busy; send fewer items at once, or this again later"
_OTLP_FORMS: Final = (Form.PROTOBUF, Form.JSON)
Handler = Callable[[Request, Client, Form], Awaitable[Response]]


class Gateway:
    """The handlers of one process and what they share."""

    def __init__(
        self,
        *,
        access: Access,
        bodies: Bodies,
        encoder: Callable[[], Encoder],
        publisher: Publisher,
        gatherer: Gatherers,
        executor: Executor,
        metrics: GatewayMetrics,
        losses: Losses,
        instrumentations: Instrumentations,
    ) -> None:
        self._instrumentations = instrumentations
        self._access = access
        self._bodies = bodies
        self._encoder = encoder
        self._publisher = publisher
        self._gatherer = gatherer
        self._executor = executor
        self._large = asyncio.Semaphore(2)
        self._metrics = metrics
        self._losses = losses

    def app(self, cors_origins: Sequence[str]) -> Starlette:
        """Build the application."""
        allowed = ["Authorization", "Content-Type", "Content-Encoding", "Idempotency-Key"]
        cors = Middleware(CORSMiddleware, allow_origins=cors_origins, allow_methods=["POST"], allow_headers=allowed)
        app = Starlette(
            routes=[
                self._route("/v1/traces", partial(self._otlp, is_log=False), _OTLP_FORMS),
                self._route("/v1/logs", partial(self._otlp, is_log=True), _OTLP_FORMS),
                self._route("/v1/tracejudge", self._plain, (Form.JSON, Form.LINES)),
            ],
            middleware=[cors] if cors_origins else [],
            exception_handlers=dict.fromkeys((404, 405, 500), self._failed),
        )
        # A redirect goes to the host that the client names, before it has shown its token.
        app.router.redirect_slashes = False
        return app

    def _route(self, path: str, handler: Handler, accepted: Sequence[Form]) -> Route:
        """Route a path to a handler, which is called for admitted clients only."""

        async def endpoint(request: Request) -> Response:
            try:
                client = self._access.client(request.headers.get("authorization"))
                if client is None:
                    message = "send a token of this gateway, as Authorization: Bearer TOKEN"
                    raise RefusedError(HTTPStatus.UNAUTHORIZED, "unauthorized", message)  # noqa: TRY301
                form = form_of(request, accepted)
                self._publisher.check()
                reply = await handler(request, client, form)
            except RefusedError as error:
                self._losses.refuse(error, path)
                reply = status_reply(error.status, str(error), _reply_form(request, accepted[0]), error.retry_s)
                # The rest of the body is not read.
                if error.status in {HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.REQUEST_TIMEOUT}:
                    reply.headers["Connection"] = "close"
            self._metrics.requests.labels(path, str(reply.status_code)).inc()
            return reply

        return Route(path, endpoint, methods=["POST"])

    async def _otlp(self, request: Request, client: Client, form: Form, *, is_log: bool) -> Response:
        body = await self._bodies.read(request)
        try:
            size = body.size_bytes
            read = partial(
                read_request,
                body.take(),
                form,
                is_log=is_log,
                service=client.service,
                instrumentations=self._instrumentations,
            )
            items: OtlpRequest = read() if size <= _LARGE_BYTES else await self._work(read, size)
            self._admit_rate(client, items.count + items.ignored)
            if items.traces:
                adding = self._executor.submit(self._gatherer.add, items)
                await self._answered(adding, _ANSWER_S, _LATE)
        finally:
            body.release()
        too_large = items.dropped.get("trace_too_large")
        self._metrics.items.labels("log" if is_log else "span").inc(items.count - (too_large.count if too_large else 0))
        self._losses.drop(items.dropped.values(), client.name)
        return Response(reply_content(form, items, is_log=is_log), media_type=form.value)

    async def _plain(self, request: Request, client: Client, form: Form) -> Response:
        key = request.headers.get("idempotency-key")
        body = await self._bodies.read(request)
        try:
            intake: Intake = await self._work(
                lambda: read_intake(
                    body.take(),
                    form,
                    self._encoder(),
                    service=client.service,
                    repeat_key=key and f"{client.name}\0{key[:200]}",
                    now_s=time.time(),
                ),
                body.size_bytes,
            )
            self._admit_rate(client, len(intake.entries) + len(intake.rejected))
            written = self._publisher.submit(intake.entries)
            await self._answered(written, _ANSWER_S, _LATE)
        finally:
            body.release()
        self._metrics.items.labels("json").inc(len(intake.entries))
        self._losses.drop(intake.losses, client.name)
        for left_out, count in intake.left_out.items():
            self._metrics.left_out.labels(left_out.field).inc(count)
        status = HTTPStatus.OK if intake.entries or not intake.rejected else HTTPStatus.BAD_REQUEST
        return Response(msgspec.json.encode(intake.reply()), status, media_type=Form.JSON.value)

    def _admit_rate(self, client: Client, items: int) -> None:
        wait_s = client.wait_s(items)
        if wait_s:
            message = f"the token {client.name} is over its rate; send this again later"
            raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "rate", message, wait_s)

    async def _work(self, function: Callable[[], Any], size_bytes: int) -> Any:
        """Read a body of a size beside the event loop."""
        async with self._large if size_bytes > _LARGE_BYTES else contextlib.nullcontext():
            return await self._answered(self._executor.submit(function), 30.0, _BUSY)

    async def _answered(self, running: "Future[Any]", most_s: float, late: str) -> Any:
        """Wait for a thread, but not for longer than a client waits; ``late`` is the cause of a longer wait."""
        try:
            async with asyncio.timeout(most_s):
                return await asyncio.wrap_future(running)
        except StoreFullError:
            raise full("Redis is full; send this again later") from None
        except (TimeoutError, StoreError) as error:
            message = _LATE if isinstance(error, StoreError) else late
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", message, 1) from None
        finally:
            # Its error refers to this frame and to the body: a cycle would keep both in memory for long.
            del running

    async def _failed(self, request: Request, error: Exception) -> Response:
        """Answer a request that has no route, or whose handler failed."""
        status = HTTPStatus(getattr(error, "status_code", HTTPStatus.INTERNAL_SERVER_ERROR))
        message = "POST to /v1/traces, /v1/logs or /v1/tracejudge"
        if status is HTTPStatus.INTERNAL_SERVER_ERROR:
            # Only the type: the text of an unexpected error may quote a request.
            log.error("request failed", error=type(error).__name__)
            message = "internal error"
        self._metrics.requests.labels("other", str(status.value)).inc()
        return status_reply(status, message, _reply_form(request))


def _reply_form(request: Request, usual: Form = Form.JSON) -> Form:
    """Return the encoding of an error: that of the request, or that which is usual on its path."""
    media = request.headers.get("content-type", "")
    return Form.JSON if "json" in media else Form.PROTOBUF if "protobuf" in media else usual
