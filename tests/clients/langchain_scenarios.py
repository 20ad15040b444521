"""The scenarios of LangChain and LangGraph, whatever the instrumentation."""

from typing import Any

import harness
from langchain.agents import create_agent
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from stay import Stay

model = ChatOpenAI(model=harness.MODEL, max_retries=0)
streaming = ChatOpenAI(model=harness.MODEL, max_retries=0, stream_usage=True)
config: Any = {"metadata": {"user_id": harness.USER, "session_id": harness.SESSION}}
BRIEF = ("system", harness.SYSTEM)
ASKED = ("human", harness.QUESTION)


class Handbook(BaseRetriever):
    """Finds the documents of the handbook, whatever the question."""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [
            Document(id=one["id"], page_content=one["text"], metadata={"source": one["source"], "score": one["score"]})
            for one in harness.DOCUMENTS
        ]


def ask(question: str, **options: Any) -> None:
    """Ask an agent of these options."""
    agent = create_agent(model, system_prompt=harness.SYSTEM, **options)
    agent.invoke({"messages": [("human", question)]}, config)


def single() -> None:
    prompt = ChatPromptTemplate.from_messages([BRIEF, ("human", "{question}")])
    (prompt | model | StrOutputParser()).invoke({"question": harness.QUESTION}, config)


def stream() -> None:
    for _ in streaming.stream([BRIEF, ASKED], config):
        pass


def two_turns() -> None:
    agent = create_agent(model, system_prompt=harness.SYSTEM, checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": harness.SESSION}, "metadata": {"user_id": harness.USER}}
    for _ in range(2):
        agent.invoke({"messages": [ASKED]}, thread)


def retrieval() -> None:
    prompt = ChatPromptTemplate.from_messages([BRIEF, ("human", "Documents:\n{context}\n\nQuestion: {question}")])
    chain = {"context": Handbook(), "question": RunnablePassthrough()} | prompt | model | StrOutputParser()
    chain.invoke(harness.RETRIEVAL_QUESTION, config)


def history() -> None:
    model.invoke([BRIEF, ASKED, ("ai", harness.ANSWER), ASKED], config)


agents: dict[str, Any] = {
    "tool": {"tools": [harness.track]},
    "retrieval": retrieval,
    "typed": {"response_format": Stay},
}
SCENARIOS = harness.asked(ask, single=single, stream=stream, two_turns=two_turns, **agents, history=history)
