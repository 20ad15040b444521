"""Which partition of a Redis Cluster holds a trace: a hash that SDK, gateway, worker and other languages share.

A partition is a prefix of keys with a hash tag, so that Redis Cluster keeps all its keys on one master. A trace belongs
to partition ``crc32(session_id or trace_id) mod N``, with zlib's CRC-32 of the UTF-8 bytes; so one partition has all
traces of a session. One Redis, also behind sentinels, has one partition under the plain prefix.
"""

from zlib import crc32

MAX_PARTITIONS = 64
CLUSTER_PARTITIONS = 8  # How many partitions a cluster has unless the worker's configuration says otherwise.


def partition_prefix(prefix: str, number: int) -> str:
    """Return the prefix of the keys of a partition on a cluster; the braces are its hash tag."""
    return f"{{{prefix}.{number}}}"


def place_of(trace_id: str, session_id: str | None) -> int:
    """Return the CRC-32 of a trace's session id, or of its trace id without one; modulo N it is the partition."""
    return crc32((session_id or trace_id).encode("utf-8", "surrogatepass"))
