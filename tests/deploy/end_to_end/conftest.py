"""One picture a test, with processes of its own; the Redis is the session's."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.pipeline import Pipeline
from traffic import reads
from whole_picture import Picture, assembled


@pytest.fixture
def picture(redis_url: str, prefix: str, tmp_path: Path) -> Iterator[Picture]:
    with ExitStack() as stack:
        pipeline = Pipeline(redis_url, prefix, tmp_path, stack)
        yield stack.enter_context(assembled(pipeline, tmp_path, reads))
