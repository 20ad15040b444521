"""The exporter for OTEL_TRACES_EXPORTER=tracejudge: a service with OpenTelemetry needs no change of its code."""

import os

from tracejudge import api
from tracejudge.log import ConfigurationError, logger
from tracejudge.otel.exporter import TraceJudgeExporter


class EnvironmentExporter(TraceJudgeExporter):
    """An exporter that calls `tracejudge.init` itself unless the host has, configured by TRACEJUDGE_* variables."""

    def __init__(self) -> None:
        super().__init__()
        if api._Current.client is None:  # noqa: SLF001 - the only record whether init was called
            try:
                # TRACEJUDGE_SERVICE first: it is the more specific name.
                api.init(service=os.environ.get("TRACEJUDGE_SERVICE") or os.environ.get("OTEL_SERVICE_NAME") or None)
            except ConfigurationError as error:
                # Not raised: the host would lose its other exporters too.
                logger.warning("OTEL_TRACES_EXPORTER=tracejudge publishes nothing: %s", error)
        self._run_first_at_exit()
