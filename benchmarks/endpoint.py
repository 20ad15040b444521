"""A chat endpoint on loopback that answers yes after a given time; `python -m benchmarks.endpoint PORT SECONDS`."""

import asyncio
import sys

from aiohttp import web

_ANSWER = {
    "id": "bench",
    "object": "chat.completion",
    "model": "bench",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": '{"rationale": "Let\'s think step by step.", "result": "yes"}'},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 1000, "completion_tokens": 20},
}


def main(port: int, seconds: float) -> None:
    """Serve until the process is ended."""
    answer = web.json_response(_ANSWER).body

    async def complete(request: web.Request) -> web.Response:
        await request.read()
        if seconds:
            await asyncio.sleep(seconds)
        return web.Response(body=answer, content_type="application/json")

    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", complete)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
