"""Strict servers of the forms that receivers document: what is not as documented is answered with 400 and kept.

Each keeps what it stores as its real counterpart does: some replace what has the same id, and some add.
"""

import base64
import hashlib
import hmac
import json
import re
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from aiohttp import web

from support.loopback import LoopbackServer

KEY = "s3cret-key-of-the-test"
PUBLIC_KEY = "public-key-of-the-test"
_TRACE = re.compile(r"[0-9a-f]{32}")
_SPAN = re.compile(r"[0-9a-f]{16}")


class RefusedError(Exception):
    """Why a request is not as documented."""


def check(is_right: object, why: str) -> None:
    if not is_right:
        raise RefusedError(why)


def known_fields(value: Mapping[str, Any], types: Mapping[str, Any], required: set[str]) -> None:
    """Check fields and types of an object."""
    check(isinstance(value, dict), "no object")
    check(required <= value.keys(), f"missing: {sorted(required - value.keys())}")
    check(value.keys() <= types.keys(), f"unknown: {sorted(value.keys() - types.keys())}")
    for name, each in value.items():
        is_right = isinstance(each, types[name]) and not (isinstance(each, bool) and types[name] is not bool)
        check(is_right, f"{name} has the wrong type")


class Backend(LoopbackServer):
    """A receiver's server. ``answers`` replaces the next replies; ``poison`` are evaluations that are refused.

    Attributes:
        stored: What is kept, by the key under which the server keeps it.
        refusals: What was not as documented.
        absent: Traces that are not ingested yet.
        status_of_poison: The status of a request with a poisoned item.
    """

    kind: ClassVar[str]
    merges: ClassVar[bool] = True
    """Whether what has the same id is replaced."""

    def __init__(self, *, port: int = 0) -> None:
        super().__init__(port=port)
        self.answers: deque[Callable[[web.Request], web.StreamResponse] | int] = deque()
        self.poison: set[str] = set()
        self.absent: set[str] = set()
        self.stored: dict[str, list[dict[str, Any]]] = {}
        self.refusals: list[str] = []
        self.status_of_poison = 400
        self.raw = b""

    def settings(self) -> dict[str, Any]:
        """Return the settings of a receiver for this server."""
        return {"kind": self.kind, "url": self.root_url, "api_key_env": "RECEIVER_KEY"}

    def evaluations(self) -> list[str]:
        """List the evaluation ids of all that is kept, each as often as it is kept."""
        return sorted(self.evaluation_of(each) for kept in self.stored.values() for each in kept)

    def evaluation_of(self, item: Mapping[str, Any]) -> str:
        raise NotImplementedError

    def keep(self, key: str, item: dict[str, Any]) -> None:
        if self.merges:
            self.stored[key] = [item]
        else:
            self.stored.setdefault(key, []).append(item)

    def authorized(self, request: web.Request) -> bool:
        return request.headers.get("authorization") == f"Bearer {KEY}"

    def accept(self, request: web.Request, body: Any) -> web.Response:
        """Check and store one request.

        Raises:
            RefusedError: It is not as documented.
        """
        raise NotImplementedError

    async def serve(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.raw = raw
        if self.answers:
            answer = self.answers.popleft()
            if isinstance(answer, int):
                return web.Response(status=answer, text="as the test says")
            reply = answer(request)
            return await reply if hasattr(reply, "__await__") else reply
        if not self.authorized(request):
            return web.Response(status=401)
        try:
            check(not raw or request.content_type == "application/json", "no JSON")
            return self.accept(request, json.loads(raw) if raw else None)
        except (RefusedError, ValueError, KeyError) as refusal:
            self.refusals.append(repr(refusal))
            return web.Response(status=400, text=str(refusal))

    def poisoned(self, items: list[dict[str, Any]]) -> bool:
        return any(self.evaluation_of(item) in self.poison for item in items)


class Phoenix(Backend):
    kind = "phoenix"

    def routes(self) -> list[web.RouteDef]:
        kinds = ("span", "trace", "session", "document")
        return [web.post(f"/v1/{kind}_annotations", self.serve) for kind in kinds]

    def evaluation_of(self, item: Mapping[str, Any]) -> str:
        return item["identifier"]

    def accept(self, request: web.Request, body: Any) -> web.Response:
        kind = request.path.removeprefix("/v1/").removesuffix("_annotations")
        check(request.query.get("sync") == "true", "not sync")
        target = {"span": "span_id", "document": "span_id"}.get(kind, f"{kind}_id")
        known_fields(body, {"data": list}, {"data"})
        types = {
            target: str, "document_position": int, "name": str, "annotator_kind": str,
            "result": dict, "metadata": dict, "identifier": str,
        }  # fmt: skip
        for item in body["data"]:
            known_fields(item, types, {target, "name", "annotator_kind", "result", "identifier"})
            known_fields(item["result"], {"label": str, "score": float | int, "explanation": str}, set())
            check(item["result"], "an empty result")
            check(item["annotator_kind"] in {"LLM", "CODE", "HUMAN"}, "annotator_kind")
            check(item["name"] != "note", "the name note is reserved")
            check(kind not in {"span", "document"} or _SPAN.fullmatch(item[target]), "span_id")
        if self.poisoned(body["data"]):
            return web.Response(status=self.status_of_poison)
        if missing := sorted({item[target] for item in body["data"]} & self.absent):
            return web.Response(status=404, text=f"{kind.title()}s with IDs {', '.join(missing)} do not exist.")
        for item in body["data"]:
            self.keep(f"{item[target]} {item['name']} {item['identifier']} {item.get('document_position')}", item)
        return web.json_response({"data": [{"id": str(number)} for number, _ in enumerate(body["data"])]})


class Mlflow(Backend):
    kind = "mlflow"
    merges = False

    def routes(self) -> list[web.RouteDef]:
        trace = "/api/3.0/mlflow/traces/{trace}"
        return [
            web.post(f"{trace}/assessments", self.serve),
            web.get(trace, self.serve),
            web.get("/version", self.serve),
        ]

    def evaluation_of(self, item: Mapping[str, Any]) -> str:
        return item["metadata"]["tracejudge.id"].partition(" ")[0]

    def accept(self, request: web.Request, body: Any) -> web.Response:
        if request.path == "/version":
            return web.Response(text="3.14.0")
        trace = request.match_info["trace"]
        check(re.fullmatch("tr-[0-9a-f]{32}", trace), "the id of the trace")
        if trace.removeprefix("tr-") in self.absent:
            return web.json_response({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no trace"}, status=404)
        if request.method == "GET":
            assessments = [each for kept in self.stored.values() for each in kept if each["trace_id"] == trace]
            return web.json_response({"trace": {"trace_info": {"trace_id": trace, "assessments": assessments}}})
        known_fields(body, {"assessment": dict}, {"assessment"})
        item = body["assessment"]
        types = {
            "assessment_name": str, "trace_id": str, "span_id": str, "source": dict, "feedback": dict,
            "rationale": str, "metadata": dict, "create_time": str, "last_update_time": str,
        }  # fmt: skip
        required = {"assessment_name", "trace_id", "source", "feedback", "create_time", "last_update_time"}
        known_fields(item, types, required)
        check("." not in item["assessment_name"], "a full stop in the name")
        known_fields(item["source"], {"source_type": str, "source_id": str}, {"source_type"})
        check(item["source"]["source_type"] in {"LLM_JUDGE", "CODE", "HUMAN"}, "source_type")
        known_fields(item["feedback"], {"value": float | int | str | bool, "error": dict}, {"value"})
        check(all(isinstance(each, str) for each in item["metadata"].values()), "metadata")
        check(item["trace_id"] == trace, "trace_id")
        if self.poisoned([item]):
            return web.Response(status=self.status_of_poison)
        self.keep(f"{trace} {item['assessment_name']}", item)
        return web.json_response({"assessment": {**item, "assessment_id": f"a-{uuid.uuid4().hex}"}})


class Langfuse(Backend):
    kind = "langfuse"

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "public_key_env": "RECEIVER_PUBLIC_KEY"}

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/api/public/ingestion", self.serve)]

    def authorized(self, request: web.Request) -> bool:
        pair = base64.b64encode(f"{PUBLIC_KEY}:{KEY}".encode()).decode()
        return request.headers.get("authorization") == f"Basic {pair}"

    def evaluation_of(self, item: Mapping[str, Any]) -> str:
        return item["id"].partition("-")[0]

    def accept(self, request: web.Request, body: Any) -> web.Response:  # noqa: ARG002 - of the base
        check(len(self.raw) <= 4_500_000, "longer than 4.5 MB")
        known_fields(body, {"batch": list, "metadata": dict}, {"batch"})
        successes, errors = [], []
        types = {
            "id": str, "traceId": str, "observationId": str, "sessionId": str, "name": str, "value": float | int,
            "dataType": str, "comment": str, "metadata": dict, "environment": str,
        }  # fmt: skip
        for event in body["batch"]:
            known_fields(event, dict.fromkeys(("id", "timestamp", "type"), str) | {"body": dict}, {"id", "timestamp"})
            check(event["type"] == "score-create", "type")
            known_fields(event["body"], types, {"id", "name", "value", "dataType"})
            check({"traceId", "sessionId"} & event["body"].keys(), "no target")
            if self.poisoned([event["body"]]):
                errors.append({"id": event["id"], "status": self.status_of_poison, "message": "no", "error": "no"})
                continue
            self.keep(event["body"]["id"], event["body"])
            successes.append({"id": event["id"], "status": 201})
        return web.json_response({"successes": successes, "errors": errors}, status=207)


class Opik(Backend):
    kind = "opik"
    tag = "opik_trace_id"

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "workspace": "default", "url": f"{self.root_url}/api"}

    def routes(self) -> list[web.RouteDef]:
        private = "/api/v1/private"
        return [web.put(f"{private}/traces/feedback-scores", self.serve), web.get(f"{private}/projects", self.serve)]

    def authorized(self, request: web.Request) -> bool:
        headers = request.headers
        return (headers.get("authorization"), headers.get("comet-workspace")) == (KEY, "default")

    def evaluation_of(self, item: Mapping[str, Any]) -> str:
        return uuid.UUID(item["id"]).hex

    def accept(self, request: web.Request, body: Any) -> web.Response:
        if request.method == "GET":
            return web.json_response({"content": []})
        known_fields(body, {"scores": list}, {"scores"})
        check(0 < len(body["scores"]) <= 1000, "the number of scores")
        types = dict.fromkeys(("id", "project_name", "name", "category_name", "reason", "source"), str)
        for item in body["scores"]:
            known_fields(item, {**types, "value": float | int}, {"id", "name", "value", "source"})
            check(item["source"] in {"ui", "sdk", "online_scoring"}, "source")
            uuid.UUID(item["id"])
        if self.poisoned(body["scores"]):
            return web.Response(status=self.status_of_poison)
        if any(self.evaluation_of(item) in self.absent for item in body["scores"]):
            return web.json_response({"errors": ["Trace not found"]}, status=404)
        for item in body["scores"]:
            self.keep(f"{item['id']} {item['name']}", item)
        return web.Response(status=204)


class Langsmith(Backend):
    kind = "langsmith"
    tag = "langsmith_run_id"

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/feedback", self.serve), web.get("/sessions", self.serve)]

    def authorized(self, request: web.Request) -> bool:
        return request.headers.get("x-api-key") == KEY

    def evaluation_of(self, item: Mapping[str, Any]) -> str:
        return uuid.UUID(item["run_id"]).hex

    def accept(self, request: web.Request, body: Any) -> web.Response:
        if request.method == "GET":
            return web.json_response([])
        types = {
            "id": str, "run_id": str, "key": str, "score": float | int, "value": str, "comment": str,
            "feedback_source": dict, "extend_trace_retention": bool, "created_at": str, "modified_at": str,
        }  # fmt: skip
        known_fields(body, types, {"id", "run_id", "key", "score", "extend_trace_retention"})
        check(body["extend_trace_retention"] is False, "extend_trace_retention")
        known_fields(body["feedback_source"], {"type": str, "metadata": dict}, {"type"})
        check(body["feedback_source"]["type"] in {"api", "model"}, "feedback_source")
        uuid.UUID(body["id"])
        if self.poisoned([body]):
            return web.Response(status=self.status_of_poison)
        if self.evaluation_of(body) in self.absent:
            return web.json_response({"detail": "Run not found"}, status=404)
        self.keep(body["id"], body)
        return web.json_response(body)


class Webhook(Backend):
    kind = "webhook"

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "url": f"{self.root_url}/hook", "secret_env": "RECEIVER_SECRET"}

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/hook", self.serve)]

    def evaluation_of(self, item: Mapping[str, Any]) -> str:
        return item["evaluation_id"]

    def accept(self, request: web.Request, body: Any) -> web.Response:
        signed = f"{request.headers['x-tracejudge-timestamp']}.".encode() + self.raw
        signature = hmac.new(KEY.encode(), signed, hashlib.sha256).hexdigest()
        check(request.headers["x-tracejudge-signature"] == f"sha256={signature}", "the signature")
        known_fields(body, {"version": int, "verdicts": list}, {"version", "verdicts"})
        if self.status_of_poison == 400:
            refused = [item["evaluation_id"] for item in body["verdicts"] if self.poisoned([item])]
        elif self.poisoned(body["verdicts"]):
            return web.Response(status=self.status_of_poison)
        else:
            refused = []
        for item in body["verdicts"]:
            if item["evaluation_id"] not in refused:
                self.keep(item["evaluation_id"], item)
        return web.json_response({"rejected": refused})


BACKENDS: tuple[type[Backend], ...] = (Phoenix, Mlflow, Langfuse, Opik, Langsmith, Webhook)
