"""Receivers of verdicts beside OpenTelemetry: platforms, webhooks and files.

docs/changing.md says what a further kind needs.
"""

from dataclasses import replace
from typing import Annotated, Final

from msgspec import Meta

from worker.base.delivery.settings import RECEIVERS, HttpReceiver, ReceiverSettings, kinds_of
from worker.core.features import Feature
from worker.core.storage.keys import KeySpace


class PhoenixSettings(HttpReceiver, frozen=True, tag="phoenix"):
    """Arize Phoenix: annotations of spans, traces, sessions and documents."""

    exporter = "worker.features.receivers.phoenix.PhoenixExporter"
    paths = tuple(f"/v1/{unit}_annotations" for unit in ("span", "trace", "session", "document"))


class LangfuseSettings(HttpReceiver, frozen=True, tag="langfuse"):
    """Langfuse: scores. `api_key_env` names the secret key.

    Attributes:
        public_key_env: Name of the variable that holds the public key.
    """

    exporter = "worker.features.receivers.langfuse.LangfuseExporter"
    paths = ("/api/public/ingestion", "/api/public")
    public_key_env: str | None = None


class MlflowSettings(HttpReceiver, frozen=True, tag="mlflow"):
    """MLflow: assessments of traces.

    Attributes:
        experiment: Id of the experiment that holds the traces.
    """

    exporter = "worker.features.receivers.mlflow.MlflowExporter"
    paths = ("/api/3.0/mlflow/traces", "/api/3.0/mlflow")
    experiment: str | None = None


class OpikSettings(HttpReceiver, frozen=True, tag="opik"):
    """Opik: feedback scores of traces that `tags.opik_trace_id` names.

    Attributes:
        workspace: The workspace, of Opik's cloud.
        project: The project of the traces.
    """

    exporter = "worker.features.receivers.opik.OpikExporter"
    trace_tag = "opik_trace_id"
    paths = ("/v1/private/traces/feedback-scores", "/v1/private/traces", "/v1/private")
    workspace: str | None = None
    project: str | None = None


class LangsmithSettings(HttpReceiver, frozen=True, tag="langsmith"):
    """LangSmith: feedback on runs that `tags.langsmith_run_id` names."""

    exporter = "worker.features.receivers.langsmith.LangsmithExporter"
    trace_tag = "langsmith_run_id"
    paths = ("/feedback",)


class WebhookSettings(HttpReceiver, frozen=True, tag="webhook"):
    """Any server: signed JSON.

    Attributes:
        secret_env: Name of the variable that holds the key of the signature; unsigned without.
        secret_file: A file that holds it instead.
    """

    exporter = "worker.features.receivers.webhook.WebhookExporter"
    secret_env: str | None = None
    secret_file: str | None = None


class FileSettings(ReceiverSettings, frozen=True, kw_only=True, tag="file"):
    """An archive: JSON lines by day.

    Attributes:
        path: The folder.
        compress: Compress the files of past days.
        keep_days: Days after which a file is deleted; never unless given.
    """

    exporter = "worker.features.receivers.files.FileExporter"
    path: str
    compress: bool = True
    keep_days: Annotated[int, Meta(ge=1)] | None = None


class StdoutSettings(ReceiverSettings, frozen=True, tag="stdout"):
    """JSON lines on standard output."""

    exporter = "worker.features.receivers.files.FileExporter"


_KINDS: Final = kinds_of(
    PhoenixSettings,
    LangfuseSettings,
    MlflowSettings,
    OpikSettings,
    LangsmithSettings,
    WebhookSettings,
    FileSettings,
    StdoutSettings,
)


class ReceiverKeys(KeySpace):
    def receiver_sent(self, name: str, day: int) -> str:
        """Hash of what a receiver without idempotency was sent on a day since 1970; TTL of three days."""
        return f"{self.prefix}:receiver:{name}:sent:{day}"


FEATURE: Final = Feature(
    name="receivers",
    tables=(replace(RECEIVERS, kinds=_KINDS),),
    keys=ReceiverKeys,
    eraser="worker.features.receivers.files.ArchiveEraser",
)
