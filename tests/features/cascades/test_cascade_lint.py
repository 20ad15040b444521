"""`tracejudge lint` on cascades."""

from pathlib import Path

from worker.base.doctor.lint import lint

CASCADE = """\
[models.default]
base_url = "https://host/v1"
model = "m"

[models.second]
base_url = "https://host/v1"
model = "n"

[cascades.both]
first = "second"
then = "default"
rate = 0.1

[[rules]]
name = "one"
judges = ["safety"]
model = "both"
"""


def test_a_first_model_without_probabilities_is_an_error_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "cascade.toml"
    path.write_text(CASCADE, encoding="utf-8")
    findings = {finding.key: (finding.code, finding.line) for finding in lint({}, str(path))}
    assert findings["cascades.both.first"] == ("TJ005", 10)
