"""A chat endpoint on loopback that answers yes after a given time; `python -m benchmarks.endpoint PORT SECONDS`."""

import json
import sys
from typing import Final

from benchmarks.serving import Peer, reply, serve

_ANSWER: Final = {
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
_REPLY: Final = reply(json.dumps(_ANSWER).encode())


class Endpoint(Peer):
    """Answers all alike."""

    def take(self, head: bytes, body: bytes) -> bytes:  # noqa: ARG002 - the question does not matter
        """Answer yes."""
        return _REPLY


if __name__ == "__main__":
    serve(Endpoint(float(sys.argv[2])), int(sys.argv[1]))
