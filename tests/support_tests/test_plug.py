"""Core and base need no feature: their tests pass in an installed copy without it."""

import pytest

from tests.plug import ALL, check, features


@pytest.mark.slow("a copy with an environment for each feature")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [ALL, *features()])
def test_core_and_base_pass_without_a_feature(name: str) -> None:
    output = check(name)
    assert not output, output
