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
# LlamaIndex refuses names that it does not know.
model = OpenAI(model="gpt-4o-mini", api_base=harness.BASE_URL, max_retries=0)
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


def messages(question: str, *before: dict[str, str]) -> list[ChatMessage]:
    said = [{"role": "system", "content": harness.SYSTEM}, *before, {"role": "user", "content": question}]
    return [ChatMessage(**one) for one in said]


def ask(question: str, *before: dict[str, str], stream: bool = False) -> None:
    """Send a conversation that ends with a question within a request."""
    with harness.request():
        done: Any = (model.stream_chat if stream else model.chat)(messages(question, *before))
        for _ in done if stream else ():
            pass


def tool() -> None:
    async def work() -> None:
        agent = FunctionAgent(tools=[harness.track], llm=model, system_prompt=harness.SYSTEM, streaming=False)
        await agent.run(harness.TOOL_QUESTION)

    with harness.request():
        asyncio.run(work())


def retrieval() -> None:
    """Build an index, which is no trace, and answer from documents."""
    VectorStoreIndex.from_documents([Document(text=one["text"]) for one in harness.DOCUMENTS])
    with harness.request():
        RetrieverQueryEngine.from_args(Handbook(), llm=model).query(harness.RETRIEVAL_QUESTION)


def typed() -> None:
    with harness.request():
        model.as_structured_llm(Stay).chat(messages(harness.TYPED_QUESTION))


harness.run(harness.asked(ask, turns=True, tool=tool, retrieval=retrieval, typed=typed))
