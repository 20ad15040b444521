"""LangChain and LangGraph through OpenInference."""

from harness import (
    ANSWER,
    DOCUMENTS,
    ERROR_QUESTION,
    MODEL,
    QUESTION,
    RETRIEVAL_QUESTION,
    SESSION,
    SYSTEM,
    TOOL_QUESTION,
    TYPED_QUESTION,
    USER,
    provider,
    run,
    track,
)
from langchain.agents import create_agent
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from openinference.instrumentation.langchain import LangChainInstrumentor
from pydantic import BaseModel

LangChainInstrumentor().instrument(tracer_provider=provider)
model = ChatOpenAI(model=MODEL, max_retries=0)
streaming = ChatOpenAI(model=MODEL, max_retries=0, stream_usage=True)
config = {"metadata": {"user_id": USER, "session_id": SESSION}}


class Stay(BaseModel):
    """An answer of two fields."""

    city: str
    days: int


class Handbook(BaseRetriever):
    """Finds the documents of the handbook, whatever the question."""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [
            Document(id=one["id"], page_content=one["text"], metadata={"source": one["source"], "score": one["score"]})
            for one in DOCUMENTS
        ]


def single() -> None:
    prompt = ChatPromptTemplate.from_messages([("system", SYSTEM), ("human", "{question}")])
    (prompt | model | StrOutputParser()).invoke({"question": QUESTION}, config)


def stream() -> None:
    for _ in streaming.stream([("system", SYSTEM), ("human", QUESTION)], config):
        pass


def two_turns() -> None:
    agent = create_agent(model, system_prompt=SYSTEM, checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": SESSION}, "metadata": {"user_id": USER}}
    for _ in range(2):
        agent.invoke({"messages": [("human", QUESTION)]}, thread)


def tool() -> None:
    create_agent(model, tools=[track], system_prompt=SYSTEM).invoke({"messages": [("human", TOOL_QUESTION)]}, config)


def retrieval() -> None:
    prompt = ChatPromptTemplate.from_messages(
        [("system", SYSTEM), ("human", "Documents:\n{context}\n\nQuestion: {question}")]
    )
    chain = {"context": Handbook(), "question": RunnablePassthrough()} | prompt | model | StrOutputParser()
    chain.invoke(RETRIEVAL_QUESTION, config)


def typed() -> None:
    agent = create_agent(model, system_prompt=SYSTEM, response_format=Stay)
    agent.invoke({"messages": [("human", TYPED_QUESTION)]}, config)


def history() -> None:
    conversation = [("system", SYSTEM), ("human", QUESTION), ("ai", ANSWER), ("human", QUESTION)]
    model.invoke(conversation, config)


def error() -> None:
    create_agent(model, system_prompt=SYSTEM).invoke({"messages": [("human", ERROR_QUESTION)]}, config)


run({one.__name__: one for one in (single, stream, two_turns, tool, retrieval, typed, history, error)})
