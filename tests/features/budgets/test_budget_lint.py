"""`tracejudge lint` on budgets."""

from pathlib import Path

from worker.base.doctor.lint import lint

BUDGET = """\
[models.default]
base_url = "https://host/v1"
model = "m"

[budgets.all]
usd_per_day = 5.0

[[rules]]
name = "one"
judges = ["safety"]
model = "default"
"""


def test_a_budget_of_models_without_a_price_is_a_warning_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "budget.toml"
    path.write_text(BUDGET, encoding="utf-8")
    assert [(finding.key, finding.code, finding.line) for finding in lint({}, str(path))] == [("budgets", "TJ104", 5)]
