"""How much of a long stream or set is read at once: entries may be some bytes each, or megabytes."""

__all__ = ["next_count"]


def next_count(count: int, read: int, size: int, *, most: int, most_bytes: int, least: int = 1) -> int:
    """Read twice as many next time, as long as so many of their size stay within the bytes of one piece.

    Args:
        count: How many were asked for.
        read: How many there were.
        size: Their bytes together.
        most: How many are asked for at most, and ``least`` at least.
        most_bytes: What a piece may take.
    """
    return max(least, min(2 * count, most_bytes * read // max(1, size), most))
