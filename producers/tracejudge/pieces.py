"""What a stream yielded, gathered into one answer of bounded size."""

from io import StringIO

from tracejudge.readable import kept_text, plain
from tracejudge.room import Room, cut_mark


class Pieces:
    """The pieces of one stream, in order: texts that follow each other are one text.

    What there is no room for is counted and marked at the end.
    """

    __slots__ = ("_characters_cut", "_done", "_room", "_text", "_values_cut")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._done: list[object] = []
        # Not a list of the pieces: an object for each token takes twenty times its text.
        self._text = StringIO()
        self._characters_cut = 0
        self._values_cut = 0

    def add(self, piece: object) -> None:
        """Add a piece; None, which many streams end with, is none."""
        if piece is None:
            return
        if issubclass(type(piece), str):
            text = str.__str__(piece)
            kept = self._room.take(len(text))
            self._text.write(text[:kept])
            self._characters_cut += len(text) - kept
        elif self._room.full:
            self._values_cut += 1
        else:
            self._end_text()
            self._done.append(plain(piece, self._room))

    def gathered(self) -> object:
        """Give all texts joined when there was nothing else, else the list of what came."""
        if self._characters_cut:
            self._text.write(cut_mark(self._characters_cut, "characters"))
        if not self._done and not self._values_cut:
            return _encodable(self._text.getvalue())
        self._end_text()
        return [*self._done, cut_mark(self._values_cut, "values")] if self._values_cut else self._done

    def _end_text(self) -> None:
        if text := self._text.getvalue():
            self._done.append(_encodable(text))
            self._text = StringIO()


def _encodable(text: str) -> str:
    return kept_text(text, Room(len(text)))
