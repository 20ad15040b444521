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


def test_a_cascade_that_does_not_pay_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "cascade.toml"
    for rate, is_found in (("0.1", False), ("0.09", True)):
        text = CASCADE.replace("rate = 0.1", f"rate = {rate}")
        text = text.replace("[models.second]\n", '[models.second]\nprovider = "decisions"\n')
        path.write_text(text, encoding="utf-8")
        findings = {finding.key: finding for finding in lint({}, str(path))}
        assert ("cascades.both.rate" in findings) is is_found, findings
    assert findings["cascades.both.rate"].code == "TJ112"
    assert "a plain sample for the second model is as good" in findings["cascades.both.rate"].what
