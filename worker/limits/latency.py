"""How long calls take: at the limit that holds now, and usually."""

from typing import Final

__all__ = ["Latency"]

_SLOW: Final = 2.0


class Latency:
    """Mean latencies of rounds, in seconds, remembered at two paces."""

    def __init__(self) -> None:
        """Begin without any."""
        self.current_s: float | None = None
        """Under the limit as it stands; None until a round has ended under it."""
        self._baseline_s: float | None = None

    def is_slow(self, latency_s: float) -> bool:
        """Tell whether a round took more than twice what is usual."""
        return self._baseline_s is not None and latency_s > _SLOW * self._baseline_s

    def remember(self, latency_s: float) -> None:
        """Note that of a round."""
        self.current_s = latency_s if self.current_s is None else self.current_s + 0.3 * (latency_s - self.current_s)
        if self._baseline_s is None:
            self._baseline_s = latency_s
        # Falls fast and rises slowly: overload comes on slowly too, but a lasting change must become the usual.
        share = 0.5 if latency_s < self._baseline_s else 0.2
        self._baseline_s += share * (latency_s - self._baseline_s)

    def begin(self) -> None:
        """Begin anew, since the limit has moved; what is usual stays."""
        self.current_s = None
