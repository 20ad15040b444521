"""Agreement of judges with human labels, and with each other; shares of verdicts with their intervals."""

from judges.agreement.arrays import cascade_share, pass_share

__all__ = ["cascade_share", "pass_share"]
