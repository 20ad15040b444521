"""The board gets a signal while it starts."""

from support.signals import stopped_at_start


def test_a_board_that_is_stopped_while_it_starts_ends_with_0() -> None:
    assert stopped_at_start("tracejudge board", 1) == (0, 0)
