"""A FastAPI service that publishes its answers, and the ratings of its users, with the SDK."""

import openai
from fastapi import FastAPI
from pydantic import BaseModel

import tracejudge

tracejudge.init(service="support-bot", environment="prod")
client = tracejudge.wrap_openai(openai.AsyncOpenAI())
app = FastAPI()


class Question(BaseModel):
    """A question of a user."""

    text: str
    session: str
    user: str


class Rating(BaseModel):
    """What a user thinks of an answer, from -1 to 1."""

    trace_id: str
    score: float
    comment: str | None = None


@tracejudge.observe(kind="retriever")
async def search(question: str) -> list[dict[str, object]]:
    """Search the handbook; the documents become the context of the trace."""
    return [
        {"id": "faq-1", "text": "Parcels leave on Mondays.", "score": 0.9},
        {"id": "faq-2", "text": "A parcel takes two days.", "score": 0.5},
    ]


@app.post("/ask")
async def ask(question: Question) -> dict[str, str | None]:
    """Answer a question. The wrapped client adds messages, model and tokens to the trace."""
    with tracejudge.trace(name="ask", input=question.text, session_id=question.session, user_id=question.user) as trace:
        documents = await search(question.text)
        handbook = "\n".join(str(one["text"]) for one in documents)
        completion = await client.chat.completions.create(
            model="gpt-6-luna",
            messages=[
                {"role": "system", "content": f"Answer from the handbook:\n{handbook}"},
                {"role": "user", "content": question.text},
            ],
        )
        trace.output = completion.choices[0].message.content
    return {"answer": trace.output, "trace_id": trace.trace_id}


@app.post("/rate", status_code=202)
async def rate(rating: Rating) -> None:
    """Publish a rating; it may come at any time after the answer."""
    tracejudge.feedback(rating.trace_id, rating.score, rating.comment)
