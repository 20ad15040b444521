"""The exporter for OTEL_TRACES_EXPORTER=tracejudge: a service that has OpenTelemetry needs no line of code."""

import os

from tracejudge import api
from tracejudge.complaints import logger
from tracejudge.errors import ConfigurationError
from tracejudge.otel.exporter import TraceJudgeExporter


class EnvironmentExporter(TraceJudgeExporter):
    """An exporter that calls `tracejudge.init` itself, unless the host has; TRACEJUDGE_* variables say the rest.

    What is missing there is said in the log: it must not cost the host its other exporters.
    """

    def __init__(self) -> None:
        super().__init__()
        if api._Current.client is None:  # noqa: SLF001 - the one place that says whether init was called
            try:
                # TRACEJUDGE_SERVICE wins: it is named for this.
                api.init(service=os.environ.get("TRACEJUDGE_SERVICE") or os.environ.get("OTEL_SERVICE_NAME") or None)
            except ConfigurationError as error:
                logger.warning("OTEL_TRACES_EXPORTER=tracejudge publishes nothing: %s", error)
        self._at_exit.put_first()
