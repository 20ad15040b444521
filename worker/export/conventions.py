"""Every OpenTelemetry name we write, in one place: the GenAI conventions are still moving.

Frozen at semantic conventions 1.41.1, the last core release that holds them; OpenInference for the evaluator span.
"""

import re
from typing import Final

__all__: list[str] = []

W3C_TRACE_ID: Final = re.compile(r"(?!0{32})[0-9a-f]{32}")
W3C_SPAN_ID: Final = re.compile(r"(?!0{16})[0-9a-f]{16}")

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.1"
SCOPE: Final = "tracejudge"

EVENT_EVALUATION_RESULT: Final = "gen_ai.evaluation.result"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE_VALUE: Final = "gen_ai.evaluation.score.value"
EVALUATION_SCORE_LABEL: Final = "gen_ai.evaluation.score.label"
EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR_TYPE: Final = "error.type"

SPAN_KIND: Final = "openinference.span.kind"
EVALUATOR: Final = "EVALUATOR"
RESULT: Final = "evaluations.{}.evaluation.{}"

EVALUATION_ID: Final = "tracejudge.evaluation.id"
TRACE_ID: Final = "tracejudge.trace_id"
ORIGIN: Final = "tracejudge.origin"
OUTCOME: Final = "tracejudge.outcome"
SERVICE: Final = "tracejudge.service"
ENVIRONMENT: Final = "tracejudge.environment"
JUDGE: Final = "tracejudge.judge.name"
JUDGE_VERSION: Final = "tracejudge.judge.version"
JUDGE_MODEL: Final = "tracejudge.judge.model"
PROBABILITY: Final = "tracejudge.sampling.probability"
COST_USD: Final = "tracejudge.cost_usd"
