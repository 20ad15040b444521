"""How much of what a host hands over is kept while its trace is open, and the marks for what is not."""

VALUE_CHARACTERS = 256 * 1024
"""Most characters kept of one value: an input, an answer, the pieces of a stream."""
SPANS_CHARACTERS = 1024 * 1024
"""Most characters kept of all spans of one trace together."""


class Room:
    """The characters that may still be kept of one value, and of all values that share `whole`.

    Threads that share a whole may overdraw it by what they take at the same moment; a lock would cost each value
    more than that is worth.
    """

    __slots__ = ("_whole", "left")

    def __init__(self, characters: int = VALUE_CHARACTERS, whole: "Room | None" = None) -> None:
        self.left = characters
        self._whole = whole

    @property
    def full(self) -> bool:
        """Whether nothing more fits."""
        return self.left <= 0 or (self._whole is not None and self._whole.full)

    def take(self, wanted: int) -> int:
        """Take up to as many characters as wanted, and say how many there were."""
        taken = max(0, min(wanted, self.left))
        if self._whole is not None:
            taken = self._whole.take(taken)
        self.left -= taken
        return taken


def cut_mark(count: int, what: str) -> str:
    """Write how much is missing, in the words that cutting uses."""
    return f"[... {count:,} {what} cut]"
