"""The scenarios of LangChain and LangGraph, whatever the instrumentation."""

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
config = {"metadata": {"user_id": harness.USER, "session_id": harness.SESSION}}


class Handbook(BaseRetriever):
    """Finds the documents of the handbook, whatever the question."""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [
            Document(id=one["id"], page_content=one["text"], metadata={"source": one["source"], "score": one["score"]})
            for one in harness.DOCUMENTS
        ]


def single() -> None:
    prompt = ChatPromptTemplate.from_messages([("system", harness.SYSTEM), ("human", "{question}")])
    (prompt | model | StrOutputParser()).invoke({"question": harness.QUESTION}, config)


def stream() -> None:
    for _ in streaming.stream([("system", harness.SYSTEM), ("human", harness.QUESTION)], config):
        pass


def two_turns() -> None:
    agent = create_agent(model, system_prompt=harness.SYSTEM, checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": harness.SESSION}, "metadata": {"user_id": harness.USER}}
    for _ in range(2):
        agent.invoke({"messages": [("human", harness.QUESTION)]}, thread)


def tool() -> None:
    create_agent(model, tools=[harness.track], system_prompt=harness.SYSTEM).invoke(
        {"messages": [("human", harness.TOOL_QUESTION)]}, config
    )


def retrieval() -> None:
    prompt = ChatPromptTemplate.from_messages(
        [("system", harness.SYSTEM), ("human", "Documents:\n{context}\n\nQuestion: {question}")]
    )
    chain = {"context": Handbook(), "question": RunnablePassthrough()} | prompt | model | StrOutputParser()
    chain.invoke(harness.RETRIEVAL_QUESTION, config)


def typed() -> None:
    agent = create_agent(model, system_prompt=harness.SYSTEM, response_format=Stay)
    agent.invoke({"messages": [("human", harness.TYPED_QUESTION)]}, config)


def history() -> None:
    conversation = [
        ("system", harness.SYSTEM),
        ("human", harness.QUESTION),
        ("ai", harness.ANSWER),
        ("human", harness.QUESTION),
    ]
    model.invoke(conversation, config)


def error() -> None:
    create_agent(model, system_prompt=harness.SYSTEM).invoke({"messages": [("human", harness.ERROR_QUESTION)]}, config)


SCENARIOS = {one.__name__: one for one in (single, stream, two_turns, tool, retrieval, typed, history, error)}
