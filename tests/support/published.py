"""Traces that the fixture ``published`` spreads over several partitions."""

from typing import Any

TRACES: list[dict[str, Any]] = [
    {
        "trace_id": f"{number:032x}",
        "service": "shop",
        "input": "Is it warm?",
        "output": "It is." if number % 2 else "It is not.",
        "user_id": "u-1" if number < 6 else "u-2",
        **({"session_id": f"s-{number % 4}"} if number % 3 == 0 else {}),
    }
    for number in range(24)
]
