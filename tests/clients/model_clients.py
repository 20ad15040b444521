"""Clients that call models, and frameworks of chains: a function each, which sets up all and runs the scenarios.

Those of an instrumentor return the scenarios, which are the same whatever the instrumentation.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import harness
from harness import BASE_URL, DOCUMENTS, MODEL, QUESTION, RETRIEVAL_QUESTION, SESSION, SYSTEM, TOOL_QUESTION, USER


def openai_scenarios() -> harness.Scenarios:
    """The scenarios of OpenAI's client."""
    from openai_scenarios import SCENARIOS

    return SCENARIOS


def anthropic_scenarios() -> harness.Scenarios:
    """The scenarios of Anthropic's client, each in the span of a request."""
    from anthropic import Anthropic

    client = Anthropic(max_retries=0)
    offered: list[Any] = [{"name": "track", "description": "Find a parcel.", "input_schema": harness.PARAMETERS}]
    final: list[Any] = [{"name": "final_result", "description": "Give the answer.", "input_schema": harness.STAY}]

    def send(question: object, *before: Any, **options: Any) -> Any:
        messages = [*before, {"role": "user", "content": question}]
        options |= {"model": MODEL, "max_tokens": 100, "system": SYSTEM}
        return client.messages.create(messages=messages, **options)

    def ask(question: object, *before: Any, **options: Any) -> None:
        with harness.request():
            done = send(question, *before, **options)
            for _ in done if options.get("stream") else ():
                pass

    def tool() -> None:
        with harness.request():
            message = send(TOOL_QUESTION, tools=offered)
            call = message.content[0]
            used = {"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}
            result = {"type": "tool_result", "tool_use_id": call.id, "content": harness.track(**call.input)}
            before = {"role": "user", "content": TOOL_QUESTION}, {"role": "assistant", "content": [used]}
            send([result], *before, tools=offered)

    def image() -> None:
        source = {"type": "url", "url": harness.IMAGE_URL}
        ask([{"type": "text", "text": QUESTION}, {"type": "image", "source": source}])

    typed = {"tools": final, "tool_choice": {"type": "tool", "name": "final_result"}}
    return harness.asked(ask, turns=True, tool=tool, typed=typed, image=image, stuffed={})


def google_scenarios() -> harness.Scenarios:
    """The scenarios of Google's client, each in the span of a request."""
    from google import genai
    from google.genai import types

    client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=harness.ROOT_URL))

    def ask(contents: Any, *, stream: bool = False, **options: Any) -> None:
        config = types.GenerateContentConfig(system_instruction=SYSTEM, **options)
        send = client.models.generate_content_stream if stream else client.models.generate_content
        with harness.request():
            done: Any = send(model=MODEL, contents=contents, config=config)
            for _ in done if stream else ():
                pass

    def two_turns() -> None:
        ask(QUESTION)
        said = types.Content(role="user", parts=[types.Part(text=QUESTION)])
        ask([said, types.Content(role="model", parts=[types.Part(text=harness.ANSWER)]), said])

    def image() -> None:
        picture = types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png")
        ask([types.Content(role="user", parts=[types.Part(text=QUESTION), picture])])

    typed = {"response_mime_type": "application/json", "response_schema": harness.stay()}
    tools = {"tools": [harness.track]}
    return harness.asked(ask, two_turns=two_turns, tool=tools, typed=typed, image=image, stuffed={})


def langchain_scenarios() -> harness.Scenarios:
    """The scenarios of LangChain and LangGraph."""
    from langchain.agents import create_agent
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import RunnablePassthrough
    from langchain_openai import ChatOpenAI
    from langgraph.checkpoint.memory import InMemorySaver

    model = ChatOpenAI(model=MODEL, max_retries=0)
    streaming = ChatOpenAI(model=MODEL, max_retries=0, stream_usage=True)
    config: Any = {"metadata": {"user_id": USER, "session_id": SESSION}}
    brief = ("system", SYSTEM)
    asked = ("human", QUESTION)

    class Handbook(BaseRetriever):
        """Finds the documents of the handbook, whatever the question."""

        def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
            return [
                Document(
                    id=one["id"], page_content=one["text"], metadata={"source": one["source"], "score": one["score"]}
                )
                for one in DOCUMENTS
            ]

    def ask(question: str, **options: Any) -> None:
        agent = create_agent(model, system_prompt=SYSTEM, **options)
        agent.invoke({"messages": [("human", question)]}, config)

    def single() -> None:
        prompt = ChatPromptTemplate.from_messages([brief, ("human", "{question}")])
        (prompt | model | StrOutputParser()).invoke({"question": QUESTION}, config)

    def stream() -> None:
        for _ in streaming.stream([brief, asked], config):
            pass

    def two_turns() -> None:
        agent = create_agent(model, system_prompt=SYSTEM, checkpointer=InMemorySaver())
        thread: Any = {"configurable": {"thread_id": SESSION}, "metadata": {"user_id": USER}}
        for _ in range(2):
            agent.invoke({"messages": [asked]}, thread)

    def retrieval() -> None:
        prompt = ChatPromptTemplate.from_messages([brief, ("human", "Documents:\n{context}\n\nQuestion: {question}")])
        chain = {"context": Handbook(), "question": RunnablePassthrough()} | prompt | model | StrOutputParser()
        chain.invoke(RETRIEVAL_QUESTION, config)

    def history() -> None:
        model.invoke([brief, asked, ("ai", harness.ANSWER), asked], config)

    agents: dict[str, Any] = {
        "tool": {"tools": [harness.track]},
        "retrieval": retrieval,
        "typed": {"response_format": harness.stay()},
    }
    return harness.asked(ask, single=single, stream=stream, two_turns=two_turns, **agents, history=history)


def azure_ai_inference() -> None:
    """Azure AI Inference with its own instrumentation, in the span of a request."""
    os.environ["AZURE_TRACING_GEN_AI_CONTENT_RECORDING_ENABLED"] = "true"

    from azure.ai.inference import ChatCompletionsClient
    from azure.ai.inference.models import JsonSchemaFormat
    from azure.ai.inference.tracing import AIInferenceInstrumentor
    from azure.core.credentials import AzureKeyCredential
    from azure.core.settings import settings

    settings.tracing_implementation = "opentelemetry"
    AIInferenceInstrumentor().instrument()

    client = ChatCompletionsClient(BASE_URL, AzureKeyCredential("none"), retry_total=0, base_user_agent="shop")
    stay = {**harness.STAY, "required": ["city", "days"], "additionalProperties": False}

    def send(*messages: Any, **options: Any) -> Any:
        brief = {"role": "system", "content": SYSTEM}
        return client.complete(messages=[brief, *messages], model=MODEL, **options)

    def ask(question: str, *before: Any, **options: Any) -> None:
        with harness.request():
            done = send(*before, {"role": "user", "content": question}, **options)
            for _ in done if options.get("stream") else ():
                pass

    def tool() -> None:
        with harness.request():
            asked = {"role": "user", "content": TOOL_QUESTION}
            message = send(asked, tools=harness.TOOLS).choices[0].message
            call = message.tool_calls[0]
            result = harness.track(**json.loads(call.function.arguments))
            send(asked, message, {"role": "tool", "tool_call_id": call.id, "content": result}, tools=harness.TOOLS)

    typed = {"response_format": JsonSchemaFormat(name="stay", schema=stay)}
    harness.run(harness.asked(ask, turns=True, tool=tool, stuffed={}, typed=typed))


def dspy() -> None:
    """DSPy through OpenInference, whose spans of model calls name the requested model alone."""
    os.environ["DSPY_CACHEDIR"] = tempfile.mkdtemp()

    import dspy
    from openinference.instrumentation.dspy import DSPyInstrumentor

    DSPyInstrumentor().instrument(tracer_provider=harness.provider)
    dspy.configure(lm=dspy.LM(f"openai/{MODEL}", api_base=BASE_URL, api_key="none", cache=False, num_retries=0))

    class Answer(dspy.Module):
        """Finds documents and answers from them."""

        def __init__(self) -> None:
            super().__init__()
            self.search = dspy.Retrieve(k=len(DOCUMENTS))
            self.answer = dspy.Predict(dspy.Signature("context: list[str], question -> answer", SYSTEM))

        def forward(self, question: str) -> dspy.Prediction:
            return self.answer(context=self.search(question).passages, question=question)

    def ask(question: str, signature: str = "question -> answer", **fields: Any) -> None:
        with harness.request():
            dspy.Predict(dspy.Signature(signature, SYSTEM))(question=question, **fields)

    def stream() -> None:
        async def work() -> None:
            predict = dspy.Predict(dspy.Signature("question -> answer", SYSTEM))
            listener = dspy.streaming.StreamListener(signature_field_name="answer")
            async for _ in dspy.streamify(predict, stream_listeners=[listener])(question=QUESTION):
                pass

        with harness.request():
            asyncio.run(work())

    def two_turns() -> None:
        ask(QUESTION)
        history = dspy.History(messages=[{"question": QUESTION, "answer": harness.ANSWER}])
        ask(QUESTION, "question, history: dspy.History -> answer", history=history)

    def tool() -> None:
        signature = dspy.Signature("question -> answer", SYSTEM)
        with harness.request():
            dspy.ReAct(signature, tools=[harness.track])(question=TOOL_QUESTION)

    def retrieval() -> None:
        with harness.request(), dspy.context(rm=dspy.ColBERTv2(url=f"{harness.ROOT_URL}/colbert")):
            Answer()(question=RETRIEVAL_QUESTION)

    others = {one.__name__: one for one in (stream, two_turns, tool, retrieval)}
    harness.run(harness.asked(ask, **others, typed={"signature": "question -> city: str, days: int"}))


def haystack() -> None:
    """Haystack through OpenInference."""
    os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

    from haystack import Document, Pipeline, component
    from haystack.components.agents import Agent
    from haystack.components.builders import ChatPromptBuilder
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function
    from openinference.instrumentation.haystack import HaystackInstrumentor

    HaystackInstrumentor().instrument(tracer_provider=harness.provider)

    @component
    class HandbookRetriever:
        """Finds the documents of the handbook, whatever the question."""

        @component.output_types(documents=list[Document])
        def run(self, query: str) -> dict[str, list[Document]]:
            found = [Document(id=one["id"], content=one["text"], score=one["score"]) for one in DOCUMENTS]
            return {"documents": found}

    globals()["HandbookRetriever"] = HandbookRetriever  # where the instrumentation looks for it

    def generator(**options: Any) -> OpenAIChatGenerator:
        return OpenAIChatGenerator(model=MODEL, max_retries=0, **options)

    def chat(question: str, *before: ChatMessage, **options: Any) -> None:
        pipeline = Pipeline()
        pipeline.add_component("llm", generator(**options))
        messages = [ChatMessage.from_system(SYSTEM), *before, ChatMessage.from_user(question)]
        with harness.request():
            pipeline.run({"llm": {"messages": messages}})

    def two_turns() -> None:
        chat(QUESTION)
        chat(QUESTION, ChatMessage.from_user(QUESTION), ChatMessage.from_assistant(harness.ANSWER))

    def tool() -> None:
        agent = Agent(
            chat_generator=generator(), tools=[create_tool_from_function(harness.track)], system_prompt=SYSTEM
        )
        with harness.request():
            agent.run(messages=[ChatMessage.from_user(TOOL_QUESTION)])

    def retrieval() -> None:
        template = [
            ChatMessage.from_system(SYSTEM),
            ChatMessage.from_user(
                "{% for one in documents %}{{ one.content }}\n{% endfor %}\nQuestion: {{ question }}"
            ),
        ]
        pipeline = Pipeline()
        pipeline.add_component("retriever", HandbookRetriever())
        pipeline.add_component(
            "prompt", ChatPromptBuilder(template=template, required_variables=["documents", "question"])
        )
        pipeline.add_component("llm", generator())
        pipeline.connect("retriever.documents", "prompt.documents")
        pipeline.connect("prompt.prompt", "llm.messages")
        with harness.request():
            pipeline.run({"retriever": {"query": RETRIEVAL_QUESTION}, "prompt": {"question": RETRIEVAL_QUESTION}})

    def stream() -> None:
        usage = {"stream_options": {"include_usage": True}}
        chat(QUESTION, streaming_callback=lambda _: None, generation_kwargs=usage)

    schema = {"type": "json_schema", "json_schema": {"name": "stay", "schema": harness.STAY}}
    others = {one.__name__: one for one in (stream, two_turns, tool, retrieval)}
    harness.run(harness.asked(chat, **others, typed={"generation_kwargs": {"response_format": schema}}))


def litellm() -> None:
    """LiteLLM with its own callback for OpenTelemetry."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no request for the price list
    os.environ["USE_OTEL_LITELLM_REQUEST_SPAN"] = "True"  # a span of its own below the span of a request

    import litellm
    from litellm.integrations.opentelemetry import OpenTelemetry, OpenTelemetryConfig

    litellm.callbacks = [OpenTelemetry(OpenTelemetryConfig(), tracer_provider=harness.provider)]
    litellm.telemetry = False
    name = f"openai/{MODEL}"
    brief: dict[str, Any] = {"role": "system", "content": SYSTEM}

    def ask(question: str, *before: Any, **options: Any) -> Any:
        """Send a conversation that ends with a question; a stream is read to its end."""
        messages = [brief, *before, {"role": "user", "content": question}]
        options |= {"stream_options": {"include_usage": True}} if options.get("stream") else {}
        # LiteLLM marks the metadata of a call that it has exported: each call needs its own.
        # What is exported is what a proxy passes on as the metadata of the request.
        metadata = {"metadata": {"user_id": USER, "session_id": SESSION}}
        done = litellm.completion(name, messages, metadata=metadata, user=USER, num_retries=0, **options)
        return [*done] if options.get("stream") else done

    def tool() -> None:
        with harness.request():
            message = ask(TOOL_QUESTION, tools=harness.TOOLS).choices[0].message
            messages = harness.with_result(message, TOOL_QUESTION)
            litellm.completion(name, messages, user=USER, tools=harness.TOOLS)

    def stuffed() -> None:
        litellm.embedding(name, [RETRIEVAL_QUESTION])
        ask(harness.stuffed(RETRIEVAL_QUESTION))

    def settle() -> None:
        time.sleep(1.5)  # callbacks run on threads of LiteLLM, which offers no wait for them
        harness.provider.force_flush()

    typed = {"response_format": harness.stay()}
    harness.run(harness.asked(ask, turns=True, tool=tool, stuffed=stuffed, typed=typed), settle)


def litellm_proxy() -> None:
    """LiteLLM's proxy with its callback for OpenTelemetry; the callers know nothing of it."""
    longest_start_s = 90
    key = "sk-0123456789abcdef0123456789abcdef"  # the proxy starts with no shorter one
    parameters = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": "none"}
    configuration = {
        "model_list": [{"model_name": MODEL, "litellm_params": parameters}],
        "litellm_settings": {"callbacks": ["otel"], "num_retries": 0, "telemetry": False},
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    Path("proxy.json").write_text(json.dumps(configuration))
    variables = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no request for the price list
        "LITELLM_MASTER_KEY": key,
        "OTEL_EXPORTER": "otlp_http",
        "OTEL_ENDPOINT": harness.ROOT_URL,
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    proxy = subprocess.Popen(
        [Path(sys.executable).parent / "litellm", "--config", "proxy.json", "--host", "127.0.0.1", "--port", str(port)],
        env=os.environ | variables,
    )
    os.environ |= {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": key}

    from openai_scenarios import STAY_FORMAT, ask, use_tool

    def wait_for_proxy() -> None:
        until = time.monotonic() + longest_start_s
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5).close()
            except OSError:
                if proxy.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.5)
            else:
                return

    def tool() -> None:
        use_tool(TOOL_QUESTION)

    typed = {"response_format": STAY_FORMAT}
    try:
        wait_for_proxy()
        # The proxy exports by itself, and offers no wait for it.
        scenarios = harness.asked(ask, turns=True, tool=tool, stuffed={}, typed=typed)
        harness.run(scenarios, lambda: time.sleep(2))
    finally:
        proxy.terminate()
        proxy.wait()


def llamaindex() -> None:
    """LlamaIndex through OpenInference."""
    from llama_index.core import Document, Settings, VectorStoreIndex
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.embeddings import MockEmbedding
    from llama_index.core.query_engine import RetrieverQueryEngine
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.llms.openai import OpenAI
    from openinference.instrumentation.llama_index import LlamaIndexInstrumentor

    LlamaIndexInstrumentor().instrument(tracer_provider=harness.provider)
    # LlamaIndex refuses names that it does not know.
    model = OpenAI(model="gpt-4o-mini", api_base=BASE_URL, max_retries=0)
    Settings.llm = model
    Settings.embed_model = MockEmbedding(2)

    def node(one: dict[str, Any]) -> TextNode:
        return TextNode(id_=one["id"], text=one["text"], metadata={"source": one["source"]})

    class Handbook(BaseRetriever):
        """Finds the documents of the handbook, whatever the question."""

        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            return [NodeWithScore(node=node(one), score=one["score"]) for one in DOCUMENTS]

    def messages(question: str, *before: dict[str, str]) -> list[ChatMessage]:
        said = [{"role": "system", "content": SYSTEM}, *before, {"role": "user", "content": question}]
        return [ChatMessage(**one) for one in said]

    def ask(question: str, *before: dict[str, str], stream: bool = False) -> None:
        with harness.request():
            done: Any = (model.stream_chat if stream else model.chat)(messages(question, *before))
            for _ in done if stream else ():
                pass

    def tool() -> None:
        async def work() -> None:
            agent = FunctionAgent(tools=[harness.track], llm=model, system_prompt=SYSTEM, streaming=False)
            await agent.run(TOOL_QUESTION)

        with harness.request():
            asyncio.run(work())

    def retrieval() -> None:
        """Build an index, which is no trace, and answer from documents."""
        VectorStoreIndex.from_documents([Document(text=one["text"]) for one in DOCUMENTS])
        with harness.request():
            RetrieverQueryEngine.from_args(Handbook(), llm=model).query(RETRIEVAL_QUESTION)

    def typed() -> None:
        with harness.request():
            model.as_structured_llm(harness.stay()).chat(messages(harness.TYPED_QUESTION))

    harness.run(harness.asked(ask, turns=True, tool=tool, retrieval=retrieval, typed=typed))


def logfire() -> None:
    """OpenAI's client under Logfire."""
    import logfire
    from openai_scenarios import SCENARIOS, client

    logfire.configure(send_to_logfire=False, console=False, metrics=False, service_name="shop")
    logfire.instrument_openai(client)
    harness.run(SCENARIOS, lambda: (harness.provider.force_flush(), logfire.force_flush()))


def weave() -> None:
    """W&B Weave's conversations: spans that hold what the program writes into them, here around OpenAI's client."""
    os.environ["WEAVE_CAPTURE_SYSTEM_INFO"] = "false"

    import weave
    from openai_scenarios import BRIEF, STAY_FORMAT, TOOLS, client
    from weave.conversation.types import Message, ToolCallPart, Usage

    weave.start_conversation(agent_name="support", conversation_id=SESSION, attributes={"user.id": USER}, model=MODEL)

    def told(message: dict[str, Any]) -> Message:
        if message["role"] == "tool":
            return Message.tool_result(message["tool_call_id"], message["content"])
        calls = [ToolCallPart(id=one["id"], **one["function"]) for one in message.get("tool_calls") or ()]
        if calls:
            return Message.assistant(tool_calls=calls)
        return Message(role=message["role"], content=message["content"])

    def call(*messages: Any, stream: bool = False, **options: Any) -> dict[str, Any]:
        with weave.start_llm(model=MODEL, provider_name="openai", system_instructions=[SYSTEM]) as llm:
            llm.record(input_messages=[*map(told, messages)])
            options |= {"model": MODEL, "messages": [BRIEF, *messages]}
            if stream:
                done = [*client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options)]
                text = "".join(chunk.choices[0].delta.content or "" for chunk in done if chunk.choices)
                last, message = done[-1], {"role": "assistant", "content": text}
            else:
                last = client.chat.completions.create(**options)
                message = last.choices[0].message.model_dump(exclude_none=True) | {"role": "assistant"}
            llm.record(
                output_messages=[told(message)],
                usage=Usage(input_tokens=last.usage.prompt_tokens, output_tokens=last.usage.completion_tokens),
                response_id=last.id,
                response_model=last.model,
            )
        return message

    def ask(question: str, *before: Any, **options: Any) -> None:
        asked = {"role": "user", "content": question}
        with weave.start_turn(user_message=question) as turn:
            message = call(*before, asked, **options)
            turn.record(output_messages=[told(message)])

    def tool() -> None:
        asked = {"role": "user", "content": TOOL_QUESTION}
        with weave.start_turn(user_message=TOOL_QUESTION) as turn:
            message = call(asked, tools=TOOLS)
            one = message["tool_calls"][0]
            with weave.start_tool(name="track", arguments=one["function"]["arguments"], tool_call_id=one["id"]) as step:
                step.result = harness.track(**json.loads(one["function"]["arguments"]))
            result = {"role": "tool", "tool_call_id": one["id"], "content": step.result}
            turn.record(output_messages=[told(call(asked, message, result, tools=TOOLS))])

    typed = {"response_format": STAY_FORMAT}
    harness.run(harness.asked(ask, turns=True, tool=tool, stuffed={}, typed=typed))
