"""The attribute and event names of all dialects. The GenAI conventions are still changing.

GenAI names are those of semantic-conventions 1.41.1 and of its successor repository, with their former spellings;
OpenInference (`OI_`) is Arize's dialect, OpenLLMetry (`TL_`) is Traceloop's, before and after it adopted GenAI names.
"""

from typing import Final

# --- OpenTelemetry GenAI ---------------------------------------------------------------------------------------
OPERATION: Final = "gen_ai.operation.name"
PROVIDERS: Final = ("gen_ai.provider.name", "gen_ai.system")
MODELS: Final = ("gen_ai.response.model", "gen_ai.request.model")
RESPONSE_ID: Final = "gen_ai.response.id"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
PROMPT: Final = "gen_ai.prompt"
COMPLETION: Final = "gen_ai.completion"
INPUT_TOKENS: Final = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT_TOKENS: Final = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
QUERY_TEXT: Final = "gen_ai.retrieval.query.text"
DOCUMENTS: Final = "gen_ai.retrieval.documents"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
ERROR_TYPE: Final = "error.type"
EVENT_DETAILS: Final = "gen_ai.client.inference.operation.details"
EVENT_CHOICE: Final = "gen_ai.choice"
EVENT_PROMPT: Final = "gen_ai.content.prompt"
EVENT_COMPLETION: Final = "gen_ai.content.completion"
EVENT_CONTENT: Final = "gen_ai.event.content"
EVENT_EXCEPTION: Final = "exception"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"

# --- names outside of the dialects ---------------------------------------------------------------------------------
SESSION_ID: Final = "session.id"
SESSION_IDS: Final = (
    *(SESSION_ID, "langfuse.session.id", "metadata.session_id", "metadata.conversation_id"),
    *("metadata.thread_id", "langsmith.metadata.session_id", "langsmith.metadata.thread_id"),
    *("ai.telemetry.metadata.sessionId", "ai.telemetry.metadata.chatId"),
)
USER_IDS: Final = (
    *("user.id", "enduser.id", "langfuse.user.id", "metadata.user_id", "langsmith.metadata.user_id"),
    *("ai.telemetry.metadata.userId", "llm.user", "metadata.user_api_key_end_user_id"),
)
METADATA: Final = "metadata"
LITELLM_METADATA: Final = "metadata.requester_metadata"
"""The arguments of LiteLLM's caller, as Python writes a dictionary."""
METADATA_SESSION_IDS: Final = ("session_id", "conversation_id", "thread_id", "sessionId", "threadId", "chat_id")
METADATA_USER_IDS: Final = ("user_id", "userId", "user", "trace_user_id")

# --- Pydantic AI ---------------------------------------------------------------------------------------------------
PA_MESSAGES: Final = ("pydantic_ai.all_messages", "all_messages_events")
PA_RESULT: Final = "final_result"

# --- OpenInference -----------------------------------------------------------------------------------------------
OI_KIND: Final = "openinference.span.kind"
OI_INPUT: Final = "input.value"
OI_INPUT_MIME: Final = "input.mime_type"
OI_OUTPUT: Final = "output.value"
OI_OUTPUT_MIME: Final = "output.mime_type"
OI_INPUT_MESSAGES: Final = "llm.input_messages"
OI_OUTPUT_MESSAGES: Final = "llm.output_messages"
OI_OWN_CALLS: Final = "message.tool_calls"
OI_PROMPTS: Final = "llm.prompts"
OI_CHOICES: Final = "llm.choices"
OI_DOCUMENTS: Final = "retrieval.documents"
OI_RERANKER_QUERY: Final = "reranker.query"
OI_RERANKER_INPUT: Final = "reranker.input_documents"
OI_RERANKER_OUTPUT: Final = "reranker.output_documents"
OI_TOOL_NAME: Final = "tool.name"
OI_TOOL_PARAMETERS: Final = "tool.parameters"
OI_TOOL_IDS: Final = ("tool.id", "tool_call.id")
OI_MODELS: Final = ("llm.response.model_name", "llm.model_name", "llm.request.model_name", "embedding.model_name")
OI_REQUEST: Final = "llm.invocation_parameters"
OI_PROVIDERS: Final = ("llm.provider", "llm.system")
OI_INPUT_TOKENS: Final = "llm.token_count.prompt"
OI_OUTPUT_TOKENS: Final = "llm.token_count.completion"
OI_REDACTED: Final = "__REDACTED__"

# --- OpenLLMetry -------------------------------------------------------------------------------------------------
TL_KIND: Final = "traceloop.span.kind"
TL_ENTITY_NAME: Final = "traceloop.entity.name"
TL_ENTITY_INPUT: Final = "traceloop.entity.input"
TL_ENTITY_OUTPUT: Final = "traceloop.entity.output"
TL_REQUEST_TYPE: Final = "llm.request.type"
TL_SESSION_ID: Final = "traceloop.association.properties.session_id"
TL_USER_IDS: Final = ("traceloop.association.properties.user_id", "gen_ai.user")
TL_EVENT_RESULT: Final = "db.query.result"
TL_RESULT_DOCUMENT: Final = "db.query.result.document"
TL_RESULT_ID: Final = "db.query.result.id"
TL_RESULT_SCORE: Final = "db.query.result.score"
TL_FILTERED: Final = "FILTERED"

# --- our own worker ----------------------------------------------------------------------------------------------
OWN_ATTRIBUTES: Final = frozenset({"tracejudge.evaluation.id", "tracejudge.judge.name", "tracejudge.judge.version"})
OWN_SCOPE: Final = "tracejudge"

# Every span of a dialect has an attribute or event with one of these prefixes.
PREFIXES: Final = ("gen_ai.", "openinference.", "llm.", "traceloop.", TL_EVENT_RESULT)

# Attributes that are read into inputs, outputs and documents, or repeat them. The others stay attributes.
CONTENT_PREFIXES: Final = (
    *(f"{PROMPT}.{digit}" for digit in range(10)),
    *(INPUT_MESSAGES, OUTPUT_MESSAGES, SYSTEM_INSTRUCTIONS, "gen_ai.tool.definitions", f"{PROMPT}.variable."),
    *(COMPLETION, QUERY_TEXT, DOCUMENTS),
    *(TOOL_ARGUMENTS, TOOL_RESULT, "gen_ai.task.input", "gen_ai.task.output", OI_INPUT, OI_OUTPUT),
    *(OI_INPUT_MESSAGES, OI_OUTPUT_MESSAGES, OI_PROMPTS, OI_CHOICES, OI_DOCUMENTS, "reranker."),
    *(OI_TOOL_PARAMETERS, "llm.tools", "llm.prompt_template", "llm.request.functions", TL_ENTITY_INPUT),
    *(TL_ENTITY_OUTPUT, *PA_MESSAGES, PA_RESULT),
)
