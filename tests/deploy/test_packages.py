"""Both distributions as a stranger gets them: complete wheels, in empty environments, beside packages of our names."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.distributions import ROOT, build, found, install, interpreter, run

from deploy import release

SDK, WORKER = "tracejudge", "tracejudge_worker"
PROJECTS = {SDK: ROOT / "producers" / "pyproject.toml", WORKER: ROOT / "pyproject.toml"}
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
BUILT = pytest.mark.slow("builds wheels and installs them")
NO_TRAFFIC = """
import judges, tracejudge, worker.core.runtime.runtime
tracejudge.init(service="shop", redis_url="redis://127.0.0.1:1/0")
assert len(tracejudge.publish(input="Is tea hot?", output="Yes.")) == 32
assert judges.groundedness is not None
tracejudge.shutdown(timeout=0.1)
"""
MODEL = '[models.default]\nprovider = "classifier"\nbackend = "onnx"\npath = "model"\nmodel = "small"\n'
ALIGN = ("judges", "align", "groundedness", "labels.jsonl", "--model", "default", "--out", "judges.d/groundedness.toml")
PAIRS = 'task = "pair"\nlabels = ["no", "yes"]\nsupport = "yes"\nmax_tokens = 512\n'
JUDGE = '[[rules]]\nname = "all"\njudges = ["groundedness"]\n'


def project(name: str) -> dict[str, object]:
    return dict(tomllib.loads(PROJECTS[name].read_text(encoding="utf-8"))["project"])


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build both distributions once, as a release does; `twine check --strict` is a part of that."""
    folder = build(tmp_path_factory.mktemp("dist"))
    return {name: next(folder.glob(f"{name}-*.whl")) for name in PROJECTS}


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the worker without extras for the newest Python found with a wheel of Redis; return its programs."""
    newest = next(filter(None, map(interpreter, ("3.12", "3.11"))))
    return install(tmp_path_factory.mktemp("plain") / "environment", newest, *wheels.values()).parent


def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(packed.read(name))


@BUILT
def test_wheels_hold_every_file_of_the_packages_and_nothing_else(wheels: dict[str, Path]) -> None:
    worker = ["judges", "worker", "docs", "tracejudge_worker.py"]
    for name, folders in {SDK: ["producers/tracejudge"], WORKER: worker}.items():
        listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
        lines = [line for line in listed.stdout.splitlines() if not line.startswith("docs/") or line.endswith(".md")]
        tracked = {re.sub("^docs/", "worker/pages/", line.removeprefix("producers/")) for line in lines}
        with ZipFile(wheels[name]) as packed:
            held = {file for file in packed.namelist() if ".dist-info/" not in file}
            licences = {file.partition("/licenses/")[2] for file in packed.namelist() if "/licenses/" in file}
        assert held == tracked
        packages = {folder.split("/")[-1] for folder in folders} & {"tracejudge", "judges", "worker"}
        assert {f"{package}/py.typed" for package in packages} <= held
        assert licences == {"LICENSE", "NOTICE"}


@BUILT
def test_metadata_is_complete_and_links_of_the_readme_lead_somewhere(wheels: dict[str, Path]) -> None:
    for name, wheel in wheels.items():
        result = metadata(wheel)
        oldest = int(str(project(name)["requires-python"]).removeprefix(">=3."))
        declared = [
            classifier for classifier in result.get_all("Classifier", []) if re.search(r":: 3\.\d+$", classifier)
        ]
        assert declared == [f"Programming Language :: Python :: 3.{minor}" for minor in range(oldest, 15)]
        assert {url.partition(",")[0] for url in result.get_all("Project-URL", [])} >= {"Documentation", "Source"}
        assert "Apache-2.0" in result["License-Expression"]
        assert result["Author"] == "TraceJudge authors"
        assert "Typing :: Typed" in result.get_all("Classifier", [])
        assert re.findall(r"\]\((?!https://|#)[^)]*\)", result.get_payload()) == []
    extras = set(metadata(wheels[WORKER]).get_all("Provides-Extra", []))
    assert extras >= {"board", "gateway", "gepa", "local", "mcp"}


def check_runs(own: Path, folder: Path) -> None:
    """Check the packages and commands of an environment, without a warning of its Python."""
    published = run([own, "-W", "error", "-c", NO_TRAFFIC], folder)
    assert published.returncode == 0, published.stderr
    listed = run([own.parent / "tracejudge", "judges", "--json"], folder)
    assert "groundedness" in {row["name"] for row in json.loads(listed.stdout)}, listed.stderr
    helped = run([own.parent / "tracejudge", "--help"], folder)
    assert (helped.returncode, helped.stderr) == (0, "")


@BUILT
def test_the_demo_runs_from_the_wheels_alone(installed: Path, tmp_path: Path) -> None:
    """With the Redis of the wheels: PATH holds only the environment and the shell's folder, without redis-server."""
    check_runs(installed / "python", tmp_path)
    page = run([installed / "tracejudge", "help", "alerts"], tmp_path)
    assert page.stdout.startswith("# Alerts\n"), page.stderr
    shell = tmp_path / "bin"
    shell.mkdir()
    for name in ("sh", "rm", "kill"):
        (shell / name).symlink_to(str(shutil.which(name)))
    command = [installed / "tracejudge", "demo", "--seconds", "4", "--json"]
    done = run(command, tmp_path, {"PATH": f"{installed}:{shell}"})
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["lost"], document["published"] > 0, document["published"]) == (0, True, document["sampled"])


@BUILT
def test_a_command_without_its_extra_says_so_in_one_line(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "tracejudge.toml").write_text(MODEL + JUDGE)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "judge.toml").write_text(PAIRS)
    (tmp_path / "labels.jsonl").write_text("{}\n")
    for extra, command in {
        "board": ["board"],
        "mcp": ["mcp"],
        "local": ["evaluate", "labels.jsonl", "--judge", "groundedness"],
        "gepa": [*ALIGN, "--optimizer", "gepa"],
    }.items():
        done = run([installed / "tracejudge", *command], tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), (extra, done.stderr)
        assert f"pip install 'tracejudge-worker[{extra}]'" in done.stderr


@BUILT
def test_another_package_of_our_names_is_reported_in_one_line(installed: Path, tmp_path: Path) -> None:
    for name, command in (("judges", "doctor"), ("worker", "worker")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text("raise RuntimeError('a package of the user')\n")
        done = run([installed / "tracejudge", command], tmp_path, {"PYTHONPATH": str(tmp_path)})
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert f"another package `{name}`, {folder}, before TraceJudge's" in done.stderr
        shutil.rmtree(folder)
    (tmp_path / "judges").mkdir()
    (tmp_path / "judges" / "__init__.py").write_text("")
    # Without PYTHONPATH the folder is not found, except by Celery, which imports from where it is started.
    assert run([installed / "tracejudge", "judges"], tmp_path).returncode == 0
    done = run([installed / "celery", "-A", "worker", "worker"], tmp_path)
    reported = "another package `judges`" in done.stderr.strip().splitlines()[-1]
    assert (done.returncode, reported) == (2, True), done.stderr


@pytest.mark.endurance("an environment of each Python; `make check` has static checks for all of them")
def test_it_runs_on_each_python_of_this_machine(wheels: dict[str, Path], installed: Path, tmp_path: Path) -> None:
    there = {found(installed / "python"), found(sys.executable)}
    for version in (version for version in VERSIONS if version not in there):
        if python := interpreter(version):
            check_runs(install(tmp_path / version, python, *wheels.values()), tmp_path)


def uv_install(python: Path, *options: str | Path) -> None:
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, *options]
    subprocess.run(command, check=True, capture_output=True)


@BUILT
def test_a_distribution_that_replaced_our_files_is_reported(
    wheels: dict[str, Path], installed: Path, tmp_path: Path
) -> None:
    """A real wheel of a job queue with a package `worker` is installed after ours."""
    jobs = tmp_path / "jobs-1.0-py3-none-any.whl"
    with ZipFile(jobs, "w") as packed:
        packed.writestr("worker/__init__.py", "import worker.jobs_settings\n")
        packed.writestr("jobs-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: jobs\nVersion: 1.0\n")
        packed.writestr("jobs-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr("jobs-1.0.dist-info/RECORD", "worker/__init__.py,,\njobs-1.0.dist-info/RECORD,,\n")
    assert run([installed / "tracejudge", "doctor"], tmp_path).stdout.count("are TraceJudge's") == 1
    try:
        uv_install(installed / "python", jobs)
        stopped = run([installed / "tracejudge", "doctor"], tmp_path)
        # The same where the foreign package can be imported, so that our start is reached.
        (package,) = (installed.parent / "lib").rglob("site-packages/worker/__init__.py")
        package.unlink()  # it may be a link into the cache of uv
        package.write_text("VERSION = 1\n")
        worker, doctor = (run([installed / "tracejudge", name], tmp_path) for name in ("worker", "doctor"))
    finally:
        command = [sys.executable, "-m", "uv", "pip", "uninstall", "--quiet", "--python", installed / "python", "jobs"]
        subprocess.run(command, check=True, capture_output=True)
        uv_install(installed / "python", "--reinstall", "--no-deps", wheels[WORKER])
    for done in (stopped, worker):
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert "jobs also installed a package" in done.stderr
    assert (doctor.returncode, "jobs also installed a package" in " ".join(doctor.stdout.split())) == (1, True)


@BUILT
def test_the_bills_of_materials_name_what_the_wheels_bring(wheels: dict[str, Path], tmp_path: Path) -> None:
    bills = {path.name.partition("-")[0]: path for path in release.sbom(wheels[SDK].parent, tmp_path, validates=False)}
    extras = {each: {*metadata(wheels[each]).get_all("Provides-Extra", [])} - {"dev", "release"} for each in PROJECTS}
    assert "gateway" in extras[WORKER]
    for name, bill in bills.items():
        requirements = [wheels[SDK], f"{wheels[name]}[{','.join(sorted(extras[name]))}]"]
        text = bill.read_text(encoding="utf-8")
        document = json.loads(text)
        assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
        assert document["metadata"]["component"]["name"] == project(name)["name"]
        command = [sys.executable, "-m", "uv", "--quiet", "pip", "compile", "-", "--no-annotate", "--no-header"]
        resolved = subprocess.run(
            [*command, "--constraint", ROOT / "constraints.txt"],
            input="\n".join(map(str, requirements)),
            capture_output=True,
            text=True,
            check=True,
        )
        brought = {tuple(line.split("==")) for line in resolved.stdout.splitlines() if "==" in line}
        if name != SDK:
            brought.add((SDK, str(project(SDK)["version"])))
        described = {
            (component["name"].lower().replace("_", "-"), component["version"]) for component in document["components"]
        }
        assert described == brought
        assert [component["name"] for component in document["components"] if "purl" not in component] == []
        assert "file:" not in text
        assert str(tmp_path) not in text
    # Collects what it would ask about, and asks nobody.
    release.audit(tmp_path, asks=False)


def test_two_releases_set_versions_and_addresses_in_a_clone(tmp_path: Path) -> None:
    """Of what is tracked here, links to folders and pictures included; pins of other packages stay as they are."""
    command = ["git", "ls-files", ".", ":!tests"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    listed.append("tests/deploy/test_packages.py")
    for name in filter(lambda name: (ROOT / name).is_symlink() or (ROOT / name).exists(), listed):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name, follow_symlinks=False)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "--all", "--intent-to-add"], cwd=tmp_path, check=True)
    kept = {
        name: (ROOT / name).read_bytes()
        for name in ("CHANGELOG.md", "constraints.txt", "tests/deploy/test_packages.py")
    }
    old = str(project(WORKER)["version"])
    addresses = {name: f"https://code.example/v9.2.0/{name}" for name in ("source", "docs", "issues")}
    changed = release.set_release(tmp_path, "9.2.0", addresses)
    assert {*map(str, PROJECTS.values())} == {str(ROOT / name) for name in changed if name.endswith("pyproject.toml")}
    assert {"deploy/Dockerfile", "deploy/compose.yaml", "deploy/versions.env", "docs/kubernetes.md"} <= {*changed}
    for name in changed:
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert (old in text, release.PLACEHOLDER in text, "9.2.0" in text) == (False, False, True), name
    written = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert written["urls"]["Changelog"] == "https://code.example/v9.2.0/source/CHANGELOG.md"
    assert "tracejudge==9.2.0" in written["dependencies"]
    # The next version, with the texts that hold something like the last one.
    page = tmp_path / "docs" / "kubernetes.md"
    others = "19.2.0, 9.2.0.1, 9.2.0.dev0, 9.2.0rc1, 9.2.01"
    page.write_text(f"{others}; other-9.2.0.tar.gz, 9.2.0.\n", encoding="utf-8")
    assert {*release.set_release(tmp_path, "9.3.0.dev0", {})} == {*changed}
    assert page.read_text(encoding="utf-8") == f"{others}; other-9.3.0.dev0.tar.gz, 9.3.0.dev0.\n"
    again = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert again["urls"]["Source"] == "https://code.example/v9.3.0.dev0/source"
    assert {name: (tmp_path / name).read_bytes() for name in kept} == kept


def test_ci_asks_no_service_for_vulnerabilities() -> None:
    """It may run without a network; `make audit` is a step of a release, which CONTRIBUTING.md names."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    run_by_ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r"make [\w-]*audit|pip.audit", run_by_ci) == []
    callers = re.findall(r"^([\w-]+):(?:[^#\n]*\baudit\b|(?:.*\n\t)+.*release audit)", makefile, re.MULTILINE)
    assert callers == ["audit"]
