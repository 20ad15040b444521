"""LlamaIndex through OpenInference."""

import asyncio
from typing import Any

import harness
from llama_index.core import Document, Settings, VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.openai import OpenAI
from openinference.instrumentation.llama_index import LlamaIndexInstrumentor
from stay import Stay

LlamaIndexInstrumentor().instrument(tracer_provider=harness.provider)
model = OpenAI(
    model="gpt-4o-mini", api_base=harness.BASE_URL, max_retries=0
)  # LlamaIndex refuses names that it does not know
Settings.llm = model
Settings.embed_model = MockEmbedding(2)


class Handbook(BaseRetriever):
    """Finds the documents of the handbook, whatever the question."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [
            NodeWithScore(
                node=TextNode(id_=one["id"], text=one["text"], metadata={"source": one["source"]}), score=one["score"]
            )
            for one in harness.DOCUMENTS
        ]


def chat(question: str, *before: ChatMessage) -> Any:
    """Send a conversation that ends with a question within a request."""
    with harness.request():
        return model.chat(
            [ChatMessage(role="system", content=harness.SYSTEM), *before, ChatMessage(role="user", content=question)]
        )


def stream() -> None:
    with harness.request():
        for _ in model.stream_chat(
            [ChatMessage(role="system", content=harness.SYSTEM), ChatMessage(role="user", content=harness.QUESTION)]
        ):
            pass


def two_turns() -> None:
    chat(harness.QUESTION)
    chat(
        harness.QUESTION,
        ChatMessage(role="user", content=harness.QUESTION),
        ChatMessage(role="assistant", content=harness.ANSWER),
    )


def tool() -> None:
    async def work() -> None:
        await FunctionAgent(tools=[harness.track], llm=model, system_prompt=harness.SYSTEM, streaming=False).run(
            harness.TOOL_QUESTION
        )

    with harness.request():
        asyncio.run(work())


def retrieval() -> None:
    """Build an index, which is no trace, and answer from documents."""
    VectorStoreIndex.from_documents([Document(text=one["text"]) for one in harness.DOCUMENTS])
    with harness.request():
        RetrieverQueryEngine.from_args(Handbook(), llm=model).query(harness.RETRIEVAL_QUESTION)


def typed() -> None:
    with harness.request():
        model.as_structured_llm(Stay).chat(
            [
                ChatMessage(role="system", content=harness.SYSTEM),
                ChatMessage(role="user", content=harness.TYPED_QUESTION),
            ]
        )


harness.run(
    {
        "single": lambda: chat(harness.QUESTION),
        "stream": stream,
        "two_turns": two_turns,
        "tool": tool,
        "retrieval": retrieval,
        "typed": typed,
        "error": lambda: chat(harness.ERROR_QUESTION),
    }
)
