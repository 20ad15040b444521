"""LlamaIndex through OpenInference."""

import asyncio
from typing import Any

from harness import (
    ANSWER,
    BASE_URL,
    DOCUMENTS,
    ERROR_QUESTION,
    QUESTION,
    RETRIEVAL_QUESTION,
    SYSTEM,
    TOOL_QUESTION,
    TYPED_QUESTION,
    provider,
    request,
    run,
    track,
)
from llama_index.core import Document, Settings, VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.openai import OpenAI
from openinference.instrumentation.llama_index import LlamaIndexInstrumentor
from pydantic import BaseModel

LlamaIndexInstrumentor().instrument(tracer_provider=provider)
model = OpenAI(model="gpt-4o-mini", api_base=BASE_URL, max_retries=0)  # LlamaIndex refuses names that it does not know
Settings.llm = model
Settings.embed_model = MockEmbedding(2)


class Stay(BaseModel):
    """An answer of two fields."""

    city: str
    days: int


class Handbook(BaseRetriever):
    """Finds the documents of the handbook, whatever the question."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [
            NodeWithScore(
                node=TextNode(id_=one["id"], text=one["text"], metadata={"source": one["source"]}), score=one["score"]
            )
            for one in DOCUMENTS
        ]


def chat(question: str, *before: ChatMessage) -> Any:
    """Send a conversation that ends with a question within a request."""
    with request():
        return model.chat(
            [ChatMessage(role="system", content=SYSTEM), *before, ChatMessage(role="user", content=question)]
        )


def stream() -> None:
    with request():
        for _ in model.stream_chat(
            [ChatMessage(role="system", content=SYSTEM), ChatMessage(role="user", content=QUESTION)]
        ):
            pass


def two_turns() -> None:
    chat(QUESTION)
    chat(QUESTION, ChatMessage(role="user", content=QUESTION), ChatMessage(role="assistant", content=ANSWER))


def tool() -> None:
    async def work() -> None:
        await FunctionAgent(tools=[track], llm=model, system_prompt=SYSTEM, streaming=False).run(TOOL_QUESTION)

    with request():
        asyncio.run(work())


def retrieval() -> None:
    """Build an index, which is no trace, and answer from documents."""
    VectorStoreIndex.from_documents([Document(text=one["text"]) for one in DOCUMENTS])
    with request():
        RetrieverQueryEngine.from_args(Handbook(), llm=model).query(RETRIEVAL_QUESTION)


def typed() -> None:
    with request():
        model.as_structured_llm(Stay).chat(
            [ChatMessage(role="system", content=SYSTEM), ChatMessage(role="user", content=TYPED_QUESTION)]
        )


run(
    {
        "single": lambda: chat(QUESTION),
        "stream": stream,
        "two_turns": two_turns,
        "tool": tool,
        "retrieval": retrieval,
        "typed": typed,
        "error": lambda: chat(ERROR_QUESTION),
    }
)
