"""`tracejudge lint` on rules that repeat evaluations."""

from pathlib import Path

import pytest

from worker.base.doctor.lint import lint

RULES = """\
[models.default]
provider = "lexical"

[models.spare]
provider = "lexical"
label = "spare"

[[rules]]
name = "wide"
judges = ["safety"]
model = "default"

[[rules]]
name = "narrow"
where = { service = "shop" }
judges = ["safety"]
rate = 0.5
model = "default"
"""


@pytest.mark.parametrize("key", ["repeat = 0.1", 'second_model = "spare"'])
def test_a_rule_that_judges_more_than_the_one_before_it_has_an_effect(tmp_path: Path, key: str) -> None:
    path = tmp_path / "repeats.toml"
    for text, never_wins in ((RULES, True), (RULES.replace("rate = 0.5", f"rate = 0.5\n{key}"), False)):
        path.write_text(text, encoding="utf-8")
        assert ("TJ102" in {finding.code for finding in lint({}, str(path))}) is never_wins
