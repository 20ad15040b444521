"""What one would write first: a Celery task a trace, prefork, and a synchronous httpx client in it."""

import os

import httpx
import msgspec
from celery import Celery

import tracejudge
from judges.core.judge import AnsweredPrompt
from judges.core.prompt import render
from judges.registry import catalogue

app = Celery("naive", broker=os.environ.get("NAIVE_BROKER", "redis://"))
app.conf.task_ignore_result = True
_JUDGE = catalogue()["groundedness"]


@app.task  # type: ignore[untyped-decorator]
def evaluate(payload: str) -> None:
    """Judge one trace and keep the score."""
    trace = msgspec.json.decode(payload, type=tracejudge.Trace)
    (prompt,) = _JUDGE.prompts(trace)
    messages = [{"role": message.role, "content": message.content} for message in render(prompt)]
    body = {"model": "bench", "messages": messages, "temperature": 0}
    with httpx.Client() as client:
        reply = client.post(f"{os.environ['NAIVE_ENDPOINT']}/chat/completions", json=body)
    answer = _JUDGE.read(reply.json()["choices"][0]["message"]["content"])
    _JUDGE.score(trace, [AnsweredPrompt(prompt, answer)])
    with app.connection_or_acquire() as connection:
        connection.default_channel.client.incr("naive:done")
