"""Classifiers that give the probability that evidence supports a claim, for judges that ask in such pairs.

The backend `http` is a server: text-embeddings-inference if `base_url` ends with `/predict`; the classification form
of vLLM and SGLang, which reads single texts only, if it ends with `/classify`. The backend `onnx` runs a model in this
process, on a thread of its own. For both, `path` names a folder with `judge.toml`.
"""

import asyncio
import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import httpx
import msgspec
from msgspec import Struct

from judges.core.decision import Question
from judges.core.faults import install_command
from judges.core.model import (
    ChatModel,
    ChatRequest,
    ChatResponse,
    InputTooLongError,
    ModelError,
    ModelRejectedError,
    ModelSettings,
    ModelTimeoutError,
    ModelUnavailableError,
)
from judges.models.http import EndpointModel, Reply
from judges.models.pairs import Description, lay_out, load_description
from judges.models.provider import ModelSettingsError, ProbeRequest, bearer, check_endpoint, read_access
from judges.models.replies import UNREADABLE, decode_reply, read_quota, reply_fields
from judges.models.reply_errors import no_chat_reply, read_fault, translated
from judges.requests.request import LARGE_CHARS, offload_if_large

if TYPE_CHECKING:
    from judges.models.local import LocalClassifier

_PREDICT: Final = "/predict"
_CLASSIFY: Final = "/classify"
_SMALLER_BATCH: Final = re.compile(r"maximum allowed batch size (\d{1,6})")
_TOO_MANY_TOKENS: Final = "must have less than"
# Estimates the tokens of a text that the server divides: three letters of Latin scripts, or one of another, each.
_ESTIMATE: Final = re.compile(r"[\x00-\x7f]{1,3}|[^\x00-\x7f]", re.DOTALL)
_TOKENS_DIGITS: Final = 9


class _Prediction(Struct):
    label: str
    score: Any


class _Class(Struct):
    index: int
    probs: list[Any]
    label: Any = None


class _Classes(Struct):
    data: list[_Class]
    id: Any = None
    model: Any = None
    usage: Any = None


class _Read(NamedTuple):
    """The value of each input of a request, and fields beside them."""

    values: list[object]
    tokens: int = 0
    id: str | None = None
    model: str | None = None
    invalid: tuple[str, ...] = ()


class HttpClassifier(EndpointModel):
    """A classifier behind a server."""

    def __init__(
        self, settings: ModelSettings, description: Description, api_key: str | None, proxy: str | None = None
    ) -> None:
        super().__init__(settings, settings.base_url or "", bearer(api_key), proxy)
        self._description = description
        self._most = 32  # The default limit of text-embeddings-inference.

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer the questions of one request, or raise ``ModelError``.

        Many inputs are sent in several requests, within one time limit for all of them.
        """
        timeout_s = self.settings.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._complete(request.questions)
        except TimeoutError as error:
            raise ModelTimeoutError(f"no answer within {timeout_s:g} s") from error

    async def _complete(self, questions: Sequence[Question]) -> ChatResponse:
        chars = sum(len(text) for question in questions for text in question.pair or ())
        layout = await offload_if_large(
            chars > LARGE_CHARS,
            lay_out,
            self._description,
            questions,
            lambda text: [match.span() for match in _ESTIMATE.finditer(text)],
        )
        inputs, reads, quota = layout.inputs, list[_Read](), None
        sent = 0
        while sent < len(inputs):
            batch = inputs[sent : sent + self._most]
            body: dict[str, object] = {"model": self.settings.model, "input": [each.text for each in batch]}
            if self._predicts:
                # A text that the server cuts off would be judged without what was cut.
                texts = [[each.text] if each.pair is None else [each.text, each.pair] for each in batch]
                body = {"inputs": texts, "truncate": False, "raw_scores": False}
            reply = await self._endpoint.post(msgspec.json.encode(body))
            quota = read_quota(reply.headers)
            if reply.status == httpx.codes.OK:
                reads.append(self._read(reply, len(batch)))
                sent += len(batch)
            elif not self._sends_fewer(reply):
                raise self._error(reply, body)
        return ChatResponse(
            "",
            input_tokens=sum(read.tokens for read in reads),
            response_id=reads[-1].id,
            model=reads[-1].model,
            quota=quota,
            invalid=tuple({name: None for read in reads for name in read.invalid}),
            decisions=layout.decide(questions, [value for read in reads for value in read.values]),
        )

    @property
    def _predicts(self) -> bool:
        return _form(self.settings) == _PREDICT

    def _read(self, reply: Reply, count: int) -> _Read:
        try:
            read = self._read_predictions(reply) if self._predicts else self._read_classes(reply.body)
        except UNREADABLE as error:
            raise no_chat_reply(reply, "the reply is no list of predictions", "a classifier") from error
        if len(read.values) != count:
            raise ModelUnavailableError(f"the reply holds {len(read.values)} predictions for {count} inputs")
        return read

    def _read_predictions(self, reply: Reply) -> _Read:
        support, values = self._description.support_label, []
        for predictions in decode_reply(reply.body, list[list[_Prediction]]):
            by_label = {prediction.label: prediction.score for prediction in predictions}
            if by_label.keys() != set(self._description.labels):
                raise _other_labels(", ".join(sorted(by_label)[: len(self._description.labels) + 1]))
            values.append(by_label[support])
        tokens = reply.headers.get("x-compute-tokens", "")
        is_count = tokens.isdecimal() and tokens.isascii() and len(tokens) <= _TOKENS_DIGITS
        return _Read(values, int(tokens) if is_count else 0)

    def _read_classes(self, body: bytes) -> _Read:
        labels, response = self._description.labels, decode_reply(body, _Classes)
        values = []
        for place, each in enumerate(sorted(response.data, key=lambda each: each.index)):
            if each.index != place:
                raise ModelUnavailableError("the reply repeats an index or leaves one out")
            if len(each.probs) != len(labels):
                raise _other_labels(f"{len(each.probs)} classes")
            # The name of the most probable class shows whether `labels` are in the order of the model's.
            numbers = [prob for prob in each.probs if isinstance(prob, int | float)]
            is_whole = each.label in labels and len(numbers) == len(labels)
            if is_whole and max(numbers) > numbers[labels.index(each.label)]:
                raise _other_labels("the same names in another order")
            values.append(each.probs[self._description.supported])
        fields = reply_fields(response.id, response.model, response.usage, ("prompt_tokens",))
        return _Read(values, fields.tokens[0], fields.id, fields.model, fields.invalid)

    def _sends_fewer(self, reply: Reply) -> bool:
        """Return whether the server accepts fewer inputs than were sent; from now on no more are sent."""
        match = _SMALLER_BATCH.search(read_fault(reply.body).message)
        if match is None or not 0 < int(match[1]) < self._most:
            return False
        self._most = int(match[1])
        return True

    def _error(self, reply: Reply, body: Mapping[str, object]) -> ModelError:
        fault = read_fault(reply.body)
        error = translated(reply, fault, body, self._endpoint)
        if _TOO_MANY_TOKENS not in fault.message or not httpx.codes.is_client_error(reply.status):
            return error
        fix = "lower max_tokens in judge.toml"
        chosen = InputTooLongError(f"the endpoint finds the request too long: HTTP {reply.status}; {fix}")
        vars(chosen).update(vars(error))
        return chosen


def _other_labels(labels: str) -> ModelRejectedError:
    return ModelRejectedError(f"the endpoint has other labels than judge.toml: {labels}; correct labels")


class OnnxClassifier:
    """A classifier in this process. One request is computed at a time, and the others wait."""

    def __init__(self, settings: ModelSettings, classifier: "LocalClassifier") -> None:
        self.settings = settings
        self._classifier = classifier
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tracejudge-classifier")

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer the questions of one request, or raise ``ModelError``."""
        cancelled, timeout_s = threading.Event(), self.settings.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                answers = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._classifier.answer, request.questions, cancelled.is_set
                )
        except TimeoutError as error:
            raise ModelTimeoutError(f"no answer within {timeout_s:g} s") from error
        finally:
            cancelled.set()  # A thread cannot be stopped, but it looks before each batch.
        return ChatResponse("", input_tokens=answers.tokens, model=self.settings.model, decisions=answers.decisions)

    async def aclose(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _form(settings: ModelSettings) -> str:
    """Return the end of the endpoint's path."""
    return f"/{httpx.URL(settings.base_url or '').path.rstrip('/').rpartition('/')[2]}"


def check(settings: ModelSettings) -> None:
    """Check backend, folder and address, or raise ``ModelSettingsError``."""
    if settings.backend is None:
        raise ModelSettingsError(
            'backend: is missing; set it to "http" for a server, or "onnx" for a folder', "missing-key"
        )
    if not settings.path:
        raise ModelSettingsError("path: is missing; name the folder with judge.toml", "missing-key")
    if settings.backend == "onnx":
        if not settings.model:
            message = "model: is missing; name the model as verdicts and metrics should show it"
            raise ModelSettingsError(message, "missing-key")
        for name in ("base_url", "api_key_env", "api_key_file", "headers"):
            if getattr(settings, name) is not None:
                raise ModelSettingsError(f'{name}: goes with backend = "http" alone; take it out', "conflict")
        return
    check_endpoint(settings)
    if _form(settings) not in {_PREDICT, _CLASSIFY}:
        fix = "end it with /predict for text-embeddings-inference, or /classify for vLLM and SGLang"
        raise ModelSettingsError(f"base_url: must be the address of the requests; {fix}")


def make(settings: ModelSettings, environment: Mapping[str, str], proxy: str | None) -> ChatModel:
    """Make the model of checked settings, or raise ``ModelSettingsError``."""
    description = load_description(settings.path or "")
    if settings.backend == "onnx":
        try:
            from judges.models.local import LocalClassifier  # noqa: PLC0415 - an extra
        except ImportError as error:
            fix = f"install the extra: {install_command('local')}"
            raise ModelSettingsError(f"backend: onnx needs onnxruntime and tokenizers ({error.name}); {fix}") from error
        return OnnxClassifier(settings, LocalClassifier(settings.path or "", description))
    if description.task == "token":
        raise ModelSettingsError("path: judge.toml has the task token, which goes with the backend onnx alone")
    if _form(settings) == _CLASSIFY and description.is_pair:
        fix = "write text with {evidence} and {claim} in judge.toml"
        raise ModelSettingsError(f"path: /classify reads single texts, and judge.toml describes pairs; {fix}")
    settings, *access = read_access(settings, environment, proxy, settings.base_url or "")
    return HttpClassifier(settings, description, *access)


def probe(settings: ModelSettings, key: str | None) -> ProbeRequest | None:
    """Make the request that describes the server; None if the model runs in this process."""
    if settings.backend == "onnx":
        return None
    url = httpx.URL(settings.base_url or "")
    before = url.path.rstrip("/").rpartition("/")[0]
    listing = "/info" if _form(settings) == _PREDICT else "/models" if before.endswith("/v1") else "/v1/models"
    return ProbeRequest(str(url.copy_with(path=f"{before}{listing}")), bearer(key))
