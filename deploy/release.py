"""Prepare a release: set its version and addresses, build both distributions, describe what they bring with them.

    python -m deploy.release set 0.2.0 --source URL --documentation URL --issues URL
    python -m deploy.release build
    python -m deploy.release sbom
    python -m deploy.release audit

`build` writes wheels and source distributions to `dist` and checks them with twine. `sbom` installs these wheels, all
extras for users included, and writes a bill of materials (CycloneDX 1.6) for each of the two. `audit` asks a service on
the network for known vulnerabilities of what these bills name.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["PLACEHOLDER", "audit", "build", "main", "sbom", "set_release"]

PLACEHOLDER: Final = "https://example.invalid/tracejudge"
_ROOT: Final = Path(__file__).resolve().parent.parent
_BUILT: Final = (
    *("LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "constraints.txt", "pyproject.toml"),
    *("tracejudge_worker.py", "judges", "worker", "docs", "producers"),
)
_DESCRIBED: Final = {"tracejudge": _ROOT / "producers/pyproject.toml", "tracejudge_worker": _ROOT / "pyproject.toml"}
_EPOCH: Final = "1580601600"  # Times in wheels do not depend on the moment of the build.
_LINK: Final = re.compile(r"\]\((?!https?://|#|mailto:)([^)\s]+)\)")


def set_release(root: Path, version: str, addresses: Mapping[str, str]) -> list[str]:
    """Replace the version and the placeholder addresses in the files of a checkout; return which files changed."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    replaced = {project["version"]: version} | {f"{PLACEHOLDER}/{name}": url for name, url in addresses.items()}
    # A version is no part of another one, such as 10.2.0 or 0.2.0.dev0.
    old = re.compile(rf"(?<![\d.])({'|'.join(map(re.escape, replaced))})(?!\.?(a|b|rc|dev|post)?\d)")
    changed = {}
    for name in _tracked(root, ".", ":!CHANGELOG.md", ":!constraints.txt", ":!deploy/release.py", ":!tests"):
        try:
            text = "" if (root / name).is_symlink() else (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        if (new := old.sub(lambda match: replaced[match[0]], text)) != text:
            changed[name] = new
    for name, new in changed.items():
        (root / name).write_text(new, encoding="utf-8")
    return list(changed)


def build(into: Path, root: Path = _ROOT) -> list[Path]:
    """Build and check wheels and source distributions of the tracked files; return their paths."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in _tracked(root, *_BUILT):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, tree / name)
        source = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
        readme = tree / "README.md"
        # A page of a package index has no files beside it.
        readme.write_text(_LINK.sub(rf"]({source}/\1)", readme.read_text(encoding="utf-8")), encoding="utf-8")
        for project in (tree / "producers", tree):
            _run("-m", "build", "--installer", "uv", "--outdir", into, project)
    built = sorted(into.glob("tracejudge*"))
    _run("-m", "twine", "check", "--strict", *built)
    return built


def sbom(wheels: Path, into: Path, *, validates: bool = True) -> list[Path]:
    """Install the wheels of a folder, each with its extras in a separate environment; write what each brings.

    With ``validates`` the generator checks each bill against the schema of CycloneDX, which takes most of the time.
    """
    written = []
    for name, project in _DESCRIBED.items():
        extras = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
        for_users = ",".join(sorted(extras.keys() - {"dev", "release"}))
        with tempfile.TemporaryDirectory() as folder:
            (wheel,) = wheels.glob(f"{name}-[0-9]*.whl")
            python, (sdk,) = f"{folder}/bin/python", wheels.glob("tracejudge-[0-9]*.whl")
            _run("-m", "uv", "venv", "--quiet", "--clear", "--python", sys.executable, folder)
            options = ("--quiet", "--python", python, "--constraint", _ROOT / "constraints.txt")
            _run("-m", "uv", "pip", "install", *options, sdk, f"{wheel}[{for_users}]")
            path = into / f"{wheel.name.removesuffix('-py3-none-any.whl')}.cdx.json"
            validation = "--validate" if validates else "--no-validate"
            formed = (validation, "--spec-version", "1.6", "--output-reproducible", "--output-file", path)
            _run("-m", "cyclonedx_py", "environment", "--pyproject", project, *formed, python)
            document = json.loads(path.read_text(encoding="utf-8"))
            for component in document["components"]:
                if "purl" not in component:  # our own SDK, which the bill calls a file of this machine
                    component["purl"] = f"pkg:pypi/{component['name']}@{component['version']}"
                    links = component["externalReferences"]
                    component["externalReferences"] = [link for link in links if not link["url"].startswith("file:")]
            path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            written.append(path)
    return written


def audit(bills: Path, *, asks: bool = True) -> None:
    """Look for known vulnerabilities of what the bills of a folder name, but only collect it if not ``asks``."""
    named = set()
    for bill in bills.glob("*.cdx.json"):
        components = json.loads(bill.read_text(encoding="utf-8"))["components"]
        named |= {f"{part['name']}=={part['version']}" for part in components if part["purl"].startswith("pkg:pypi/")}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(sorted(name for name in named if not name.startswith("tracejudge"))))
        requirements.flush()
        # The versions are complete and exact, so pip, which would ask an index for more, is not needed.
        options = ("--disable-pip", "--no-deps", "--strict", *(() if asks else ("--dry-run",)))
        _run("-m", "pip_audit", *options, "--requirement", requirements.name)


def _tracked(root: Path, *patterns: str) -> list[str]:
    listed = subprocess.run(  # noqa: S603 - names of files
        ["git", "ls-files", *patterns],  # noqa: S607 - the git of the PATH
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.splitlines()


def _run(*arguments: str | Path) -> None:
    environment = os.environ | {"SOURCE_DATE_EPOCH": _EPOCH, "UV_PYTHON_DOWNLOADS": "never"}
    # Its output goes to standard error, also if the program succeeds.
    subprocess.run([sys.executable, *arguments], env=environment, stdout=sys.stderr, check=True)  # noqa: S603


def main() -> None:
    """Run one step of a release."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=(__doc__ or "").split("\n", 1)[0])
    steps = parser.add_subparsers(dest="step", required=True)
    setting = steps.add_parser("set", help="replace the version and the placeholder addresses in this checkout")
    setting.add_argument("version")
    for name in ("source", "documentation", "issues"):
        setting.add_argument(f"--{name}", required=True, metavar="URL")
    for name, does in (("build", "build and check the distributions"), ("sbom", "write the bills of materials")):
        steps.add_parser(name, help=does).add_argument("--into", type=Path, default=Path("dist"), metavar="FOLDER")
    auditing = steps.add_parser("audit", help="look for known vulnerabilities; asks a service on the network")
    auditing.add_argument("--into", type=Path, default=Path("dist"), metavar="FOLDER")
    options = parser.parse_args()
    if options.step == "audit":
        audit(options.into)
        return
    if options.step == "set":
        addresses = {"source": options.source, "docs": options.documentation, "issues": options.issues}
        written = set_release(_ROOT, options.version, addresses)
    else:
        options.into.mkdir(parents=True, exist_ok=True)
        written = list(map(str, build(options.into) if options.step == "build" else sbom(options.into, options.into)))
    print("\n".join(written))


if __name__ == "__main__":
    main()
