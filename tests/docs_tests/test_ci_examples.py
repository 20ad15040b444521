"""The workflows of docs/examples/ci: they follow the schemas of GitHub and GitLab, and their commands are run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "docs/examples/ci"
ROW = '{{"trace_id": "{}", "input": "When?", "output": "{}", "context": ["Parcels leave on Monday."]}}\n'
GOOD, BAD = "Parcels leave on Monday.", "Unicorns rain from purple clouds."


def commands(name: str) -> list[str]:
    """Return the commands from the answers to the verdicts, those before and after them left out."""
    document = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    if name == "gitlab.yml":
        return ["\n".join(map(str, document["judge answers"]["script"][2:]))]
    steps = {step.get("name"): step.get("run") for step in document["jobs"]["judge"]["steps"]}
    return [steps["Judge"], steps["Keep the verdicts of main"]]


@pytest.mark.parametrize("name", ["github.yml", "gitlab.yml"])
def test_a_workflow_follows_its_schema_and_gates_a_release(name: str, tmp_path: Path) -> None:
    schema = "gitlab-ci" if name == "gitlab.yml" else "github-workflows"
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    transform = ["--data-transform", "gitlab-ci"] if name == "gitlab.yml" else []
    checked = subprocess.run([*check, *transform, FOLDER / name], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    place = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "tracejudge.toml").write_text('[models.default]\nprovider = "lexical"\n', encoding="utf-8")
    environment = {
        "PATH": place,
        "TRACEJUDGE_CONFIG": "tracejudge.toml",
        "HOME": str(tmp_path),
        "CI_COMMIT_BRANCH": "main",
        "CI_DEFAULT_BRANCH": "main",
    }
    ends = []
    # The second run compares with the first, which was kept; then come answers that nothing supports, and too few.
    # Those of another judge are refused as a baseline, and replaced.
    for answers in ([GOOD] * 60, [GOOD] * 60, [GOOD] * 30 + [BAD] * 30, [GOOD] * 5, [BAD] * 60, [GOOD] * 60):
        if answers[0] == BAD:
            other = (tmp_path / "before.jsonl").read_text(encoding="utf-8")
            other = other.replace('"judge_model":"', '"judge_model":"other')
            (tmp_path / "before.jsonl").write_text(other, encoding="utf-8")
        rows = (ROW.format(number, answer) for number, answer in enumerate(answers))
        (tmp_path / "answers.jsonl").write_text("".join(rows), encoding="utf-8")
        (tmp_path / "verdicts.jsonl").unlink(missing_ok=True)
        ended, *_ = (
            subprocess.run(
                ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True, check=False
            )
            for script in commands(name)
        )
        summary = (tmp_path / "summary.md").read_text(encoding="utf-8").splitlines()
        ends.append((ended.returncode, summary[0].rpartition(" ")[2], "points" in summary[3]))
    undecided = 3 if name == "gitlab.yml" else 0
    assert ends == [
        (0, "passed", False),
        (0, "passed", True),
        (1, "failed", True),
        (undecided, "undecided" if undecided else "passed", True),
        (2, "undecided" if undecided else "passed", True),
        (0, "passed", True),
    ]
