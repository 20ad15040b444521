"""Which of several Redis servers holds a trace: a stable hash that SDK, gateway, worker and other languages share.

The name of a trace is its session id if it has one, else its trace id, so that one shard has all traces of a session.
The first 8 bytes of the SHA-256 of the name (UTF-8, big-endian) are a key of 64 bits, and jump consistent hashing
(Lamping and Veach, 2014) assigns it to one of the shards 0, 1, 2 … With one shard more, only the names that the new
shard gets are assigned anew: one in n.
"""

import re
from collections.abc import Sequence

from tracejudge.log import ConfigurationError
from tracejudge.redis_url import RedisUrl, parse_redis_url

MAX_SHARDS = 64
# A URL of several sentinels has commas of its own.
_BETWEEN = re.compile(r"\s*,\s*(?=[a-z+]+://)", re.IGNORECASE)


def shard_of(trace_id: str, session_id: str | None, shards: int) -> int:
    """Return the number of the shard, from 0, that holds a trace.

    Args:
        trace_id: Its trace id, as it is published.
        session_id: Its session id, as it is published; None or empty without one.
        shards: How many shards there are, 1 to 64.
    """
    if shards <= 1:
        return 0
    # Here, because `import tracejudge` need not pay for it.
    from hashlib import sha256  # noqa: PLC0415

    name = (session_id or trace_id).encode("utf-8", "surrogatepass")
    key = int.from_bytes(sha256(name).digest()[:8], "big")
    shard = following = 0
    while following < shards:
        shard = following
        key = (key * 2862933555777941757 + 1) & ((1 << 64) - 1)
        following = ((shard + 1) << 31) // ((key >> 33) + 1)
    return shard


def split_urls(text: str) -> list[str]:
    """Split a list of URLs that is written in one variable, with commas between them."""
    return [url for url in _BETWEEN.split(text.strip()) if url]


def parse_shards(urls: Sequence[str]) -> tuple[RedisUrl, ...]:
    """Check the URLs of all shards.

    Raises:
        ConfigurationError: A URL is wrong, is there twice, or there are too many. The message never quotes a URL.
    """
    if not 1 <= len(urls) <= MAX_SHARDS:
        raise ConfigurationError(f"shards must name 1 to {MAX_SHARDS} Redis servers; set as many")
    parsed = []
    for number, url in enumerate(urls):
        try:
            parsed.append(parse_redis_url(url))
        except ConfigurationError as error:
            raise ConfigurationError(f"shards[{number}]: {error}") from None
        if parsed[-1] in parsed[:-1]:
            raise ConfigurationError(
                f"shards[{number}]: is the same as shards[{parsed.index(parsed[-1])}]; name each once"
            )
    return tuple(parsed)
