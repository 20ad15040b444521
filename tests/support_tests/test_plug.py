"""Core and base need no feature: their tests pass in an installed copy without it."""

import pytest

from tests.plug import check, features, groups


@pytest.mark.slow("copies with environments of their own")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("removed", [features(), *map(sorted, groups())], ids=",".join)
def test_core_and_base_pass_without_features(removed: list[str]) -> None:
    """`make test-long` removes one after the other."""
    output = check(removed)
    assert not output, output
