"""A LangGraph graph that retrieves and answers; it holds no code for tracing."""

import sys
from typing import TypedDict

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.retrievers import BaseRetriever
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph


class State(MessagesState):
    """The conversation, and the documents of the last question."""

    documents: list[Document]


class Found(TypedDict):
    """What the first node adds to the state."""

    documents: list[Document]


class Answered(TypedDict):
    """What the second node adds to the state."""

    messages: list[AnyMessage]


class Handbook(BaseRetriever):
    """A stand-in for a vector store."""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [
            Document(id="faq-1", page_content="Parcels leave on Mondays.", metadata={"source": "faq.md"}),
            Document(id="faq-2", page_content="A parcel takes two days.", metadata={"source": "faq.md"}),
        ]


handbook = Handbook()
model = ChatOpenAI(model="gpt-6-luna")


def retrieve(state: State) -> Found:
    """Search the handbook for the last message."""
    return {"documents": handbook.invoke(str(state["messages"][-1].content))}


def answer(state: State) -> Answered:
    """Ask the model, with the documents before the conversation."""
    texts = "\n".join(document.page_content for document in state["documents"])
    instructions = SystemMessage(f"Answer from the handbook:\n{texts}")
    return {"messages": [model.invoke([instructions, *state["messages"]])]}


builder = StateGraph(State)
builder.add_node("retrieve", retrieve)
builder.add_node("answer", answer)
builder.add_edge(START, "retrieve")
builder.add_edge("retrieve", "answer")
builder.add_edge("answer", END)
graph = builder.compile(checkpointer=InMemorySaver(), name="support")

for question in sys.argv[1:]:
    state = graph.invoke(
        {"messages": [HumanMessage(question)]},
        {"configurable": {"thread_id": "session-1"}, "metadata": {"user_id": "user-1"}},
    )
    print(state["messages"][-1].content)
