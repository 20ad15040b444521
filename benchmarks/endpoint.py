"""An endpoint on loopback that answers yes after a given time; `python -m benchmarks.endpoint PORT SECONDS`.

It answers chat requests, and requests for decisions that ask one predicate.
"""

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
_DECISION: Final = {
    "answers": [{"type": "predicate", "name": "q1", "probability": 0.93}],
    "model": "bench",
    "usage": {
        "input_tokens": 1000,
        "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 1001,
    },
}
_DECIDED: Final = reply(json.dumps(_DECISION).encode())


class Endpoint(Peer):
    """Answers all alike."""

    def take(self, head: bytes, body: bytes) -> bytes:  # noqa: ARG002 - the question does not matter
        """Answer yes."""
        return _DECIDED if head.startswith(b"POST /v1/decisions ") else _REPLY


if __name__ == "__main__":
    serve(Endpoint(float(sys.argv[2])), int(sys.argv[1]))
