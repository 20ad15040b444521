"""Ports for servers of tests: each test process has its own, and none comes again soon, for a server may be down."""

import itertools
import os
import random

from worker.embedded import is_free

PORTS = range(10_000, 19_600)
"""Below those of outgoing connections, and of embedded servers of Redis."""
PROCESSES = 8


def own_part(ports: range) -> range:
    """Choose what belongs to this test process, of up to eight of one run."""
    place = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES
    share = len(ports) // PROCESSES
    return ports[place * share : (place + 1) * share]


def _dealt(ports: range) -> "itertools.cycle[int]":
    # From somewhere within: another run of the suite may go on beside.
    begin = random.randrange(len(ports))
    return itertools.cycle([*ports[begin:], *ports[:begin]])


_ports = _dealt(own_part(PORTS))


def free_port() -> int:
    """Give a port where nobody listens now, and that was not given for the last thousand times."""
    for port in itertools.islice(_ports, len(PORTS)):
        if is_free(port):
            return port
    raise AssertionError("no free port: end what listens on those of this process")
