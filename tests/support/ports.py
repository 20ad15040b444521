"""Ports for test servers: each test process has its own range, and reuses a port late: its server may be down."""

import itertools
import os
import random

from worker.base.embedded import is_free

PORTS = range(10_000, 19_600)
"""Below the ports of outgoing connections and of embedded Redis servers."""
PROCESSES = 8


def own_part(ports: range) -> range:
    """Return the part of a range for this test process, one of up to eight in a run."""
    place = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES
    share = len(ports) // PROCESSES
    return ports[place * share : (place + 1) * share]


def _rotation(ports: range) -> "itertools.cycle[int]":
    # Start at a random place: another run of the suite may be active.
    begin = random.randrange(len(ports))
    return itertools.cycle([*ports[begin:], *ports[:begin]])


_ports = _rotation(own_part(PORTS))


def free_port() -> int:
    """Return a port without listener that was not among the last thousand returned."""
    for port in itertools.islice(_ports, len(PORTS)):
        if is_free(port):
            return port
    raise AssertionError("no free port: end what listens on those of this process")
