"""The Dockerfile, against the code, and played in an empty folder without an engine.

Absolute paths of the image lie below that folder; all stages share them, so that what one copies from another must be
there and is left where it is. What the engine does else (layers, users, namespaces) is not played.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from chart import load_chart, project
from compose_file import services
from packaging.requirements import Requirement
from support.processes import free_port, missing, wait_until
from support.scrape import scrape

from deploy import images as versions
from deploy.generated import write
from worker.base.commands.groups import commands
from worker.core.config.settings import Settings
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "Dockerfile"
BUILDS = pytest.mark.slow("installs the image")
MAX_MIB = 150
IN_THE_IMAGE = ("board", "gateway")


class Instruction(NamedTuple):
    """One instruction, its lines joined."""

    name: str
    rest: str

    @property
    def words(self) -> list[str]:
        """Its arguments, of the exec form or of the shell's; without flags."""
        if self.rest.startswith("["):
            return list(json.loads(self.rest))
        return [word for word in shlex.split(self.rest) if not word.startswith("--")]

    @property
    def pairs(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in shlex.split(self.rest))


def read(path: Path) -> list[Instruction]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


INSTRUCTIONS = read(FILE)


def all_of(name: str) -> list[Instruction]:
    return [instruction for instruction in INSTRUCTIONS if instruction.name == name]


def last(name: str) -> Instruction:
    return all_of(name)[-1]


def pinned() -> set[str]:
    """Name what constraints.txt and the instructions fix, as `name==version`."""
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    instructed = (word for run in all_of("RUN") for word in run.words)
    return {plain(word) for word in (*constraints, *instructed) if "==" in word}


def plain(name: str) -> str:
    return name.lower().replace("-", "_")


def variables() -> dict[str, str]:
    return {name: value for env in all_of("ENV") for name, value in env.pairs.items()}


def test_both_stages_have_the_same_pinned_python_and_install_pinned_packages() -> None:
    """No secret and no file from elsewhere comes in."""
    (base,) = {instruction.words[0] for instruction in all_of("FROM")}
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm(@sha256:[0-9a-f]{64})?", base)
    assert len(all_of("FROM")) == 2
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    for run in all_of("RUN"):
        if "install" in run.words:
            assert run.words[run.words.index("install") + 1 :][:2] == ["-c", "constraints.txt"]
            named = run.words[run.words.index("install") + 3 :]
            assert all(f"\n{word}==" in pinned or word.startswith("/src/wheels/") for word in named)
    extras = {
        Requirement(requirement).name
        for extra in IN_THE_IMAGE
        for requirement in project()["optional-dependencies"][extra]
    }
    assert extras == {*named} - {"setuptools", "/src/wheels/*.whl"}
    assert not all_of("ARG") + all_of("ADD")
    assert not [name for name in variables() if re.search("KEY|TOKEN|SECRET|PASSWORD", name)]


def test_it_starts_the_worker_without_a_shell_as_a_number_that_is_not_root() -> None:
    """Ports and variables are those of the settings, labels those of the distribution."""
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", last("USER").rest)
    assert INSTRUCTIONS.index(last("USER")) > INSTRUCTIONS.index(last("COPY"))
    assert last("ENTRYPOINT").rest.startswith("[")
    assert last("ENTRYPOINT").words[0] in project()["scripts"]
    assert last("CMD").words == ["worker"]
    assert last("CMD").words[0] in commands()
    assert last("EXPOSE").rest == str(Settings().metrics_port) == variables()["TRACEJUDGE_METRICS_PORT"]
    assert variables()["TRACEJUDGE_METRICS_HOST"] == "0.0.0.0"  # noqa: S104 - reached from outside the container
    ours = {name.removeprefix("TRACEJUDGE_").lower() for name in variables() if name.startswith("TRACEJUDGE_")}
    assert ours <= set(msgspec.structs.asdict(Settings()))
    labels = last("LABEL").pairs
    assert labels["org.opencontainers.image.version"] == project()["version"]
    assert labels["org.opencontainers.image.description"] == project()["description"]


def test_every_image_has_one_version_in_one_file() -> None:
    """What the file does not name, or names and nothing uses, is an error."""
    images = versions.read()
    names = {image[0].partition("=")[2] for image in images.values()}
    named = {word for instruction in all_of("FROM") for word in instruction.words[:1]}
    named |= {service["image"] for service in services().values()}
    named.add(load_chart().values["image"])
    assert named == names


def test_a_changed_version_reaches_every_file(tmp_path: Path) -> None:
    digest = f"@sha256:{'0123456789abcdef' * 4}"
    text = versions.VERSIONS.read_text(encoding="utf-8")
    for image in versions.read(text).values():
        text = text.replace(image[0], f"{image['name']}={image['repository']}:9.9{digest}")
    changed = versions.rewritten(versions.read(text))
    assert write(tmp_path, changed, alone=False) == sorted(changed)
    dockerfile, compose, values, chart = (changed[user] for user in versions.USERS)
    assert "\nversion: 9.9\nappVersion: 9.9\n" in chart
    assert dockerfile.count(f"FROM python:9.9{digest}") == 2
    assert f"image: redis:9.9{digest}" in compose
    assert "image: tracejudge-worker:9.9\n" in compose  # which is built, and has no digest yet
    assert values.startswith("#")
    assert f"\nimage: tracejudge-worker:9.9{digest}\n" in values
    # A registry, whose address may have a port, reaches the files too, and another one replaces it.
    for registry, tag, chart in (
        ("registry.example/a", "0.2.0", "0.2.0"),
        ("localhost:5000", "0.3.0rc1", "0.3.0-rc.1"),
    ):
        own = f"TRACEJUDGE={registry}/tracejudge-worker:{tag}"
        moved = versions.read(re.sub("(?m)^TRACEJUDGE=.*$", f"{own}{digest}", text))
        write(tmp_path, versions.rewritten(moved, tmp_path), alone=False)
        by_user = {user: (tmp_path / user).read_text(encoding="utf-8") for user in versions.USERS}
        assert f"\n  image: {registry}/tracejudge-worker:{tag}\n" in by_user["compose.yaml"]
        assert f"\nimage: {registry}/tracejudge-worker:{tag}{digest}\n" in by_user["helm/tracejudge/values.yaml"]
        assert f"\nversion: {chart}\nappVersion: {tag}\n" in by_user["helm/tracejudge/Chart.yaml"]
    # Back to what is committed: nothing but versions was rewritten.
    assert versions.rewritten(versions.read(), tmp_path) == {
        user: (ROOT / "deploy" / user).read_text(encoding="utf-8") for user in changed
    }


DOCKER = """#!/usr/bin/env python3
import json, sys
assert sys.argv[1:-1] == ["buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}"], sys.argv
if sys.argv[-1].startswith("absent"):
    sys.exit("ERROR: absent:1: not found")
architectures = ["amd64"] if sys.argv[-1].startswith("half") else ["amd64", "arm64", "unknown"]
platforms = [{"platform": {"os": "linux", "architecture": name}} for name in architectures]
print(json.dumps({"digest": "sha256:" + "ab" * 32, "manifests": platforms}))
"""


def test_a_release_adds_the_digests_of_images_for_both_platforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's command line is played: a registry of images cannot run here."""
    program = tmp_path / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    digest, kept = f"@sha256:{'ab' * 32}", f"@sha256:{'cd' * 32}"
    text = "# A comment.\nPYTHON=python:3.11{0}\nREDIS=redis:7{1}\nTRACEJUDGE=localhost:5000/own:1{0}\n"
    assert versions.with_digests(text.format("", kept)) == text.format(digest, kept)
    for line, says in (
        ("HALF=half:1", "half:1: no image for linux/arm64"),
        ("ABSENT=absent:1", "absent:1: docker buildx finds no digest: ERROR: absent:1: not found"),
        ("REDIS=redis", "write NAME=repository:tag"),
        ("TRACEJUDGE=own:1", "push our image and name its registry: TRACEJUDGE=REGISTRY/own:1"),
    ):
        with pytest.raises(versions.ImageError, match=says):
            versions.with_digests(line)


SENT = (
    *("worker/core/config/settings.py", "worker/core/storage/scripts/leases.lua", "producers/tracejudge/py.typed"),
    *("judges/samples/agents/trip-agent.jsonl", "constraints.txt"),
)
NOT_SENT = (
    *("tracejudge.toml", "worker/tracejudge.toml", "worker/__pycache__/keys.cpython-311.pyc", ".git/config", ".env"),
    *("producers/tracejudge.egg-info/PKG-INFO", "tests/conftest.py", "deploy/compose.yaml"),
)


def is_ignored(name: str) -> bool:
    """Return whether a path of the context is ignored: the last pattern that matches it or a parent folder decides."""
    wild = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts, ignored = name.split("/"), False
    folders = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    for line in FILE.with_name("Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#"):
            pieces = re.split(r"(\*\*/|\*\*|\*|\?)", pattern.lstrip("!").strip("/"))
            expression = "".join(wild.get(piece, re.escape(piece)) for piece in pieces)
            if any(re.fullmatch(expression, folder) for folder in folders):
                ignored = not pattern.startswith("!")
    return ignored


def test_nothing_but_what_is_needed_is_sent_to_the_engine() -> None:
    assert [name for name in (*SENT, *NOT_SENT) if not is_ignored(name)] == [*SENT]


# --- the image ---
PIP = """#!/bin/sh
python={base}
if [ "$1" = --python ]; then python=$2; shift 2; fi
verb=$1; shift
if [ $verb = install ]; then exec {here} -m uv --quiet pip install --python $python "$@"; fi
exec {here} -m pip --python $python $verb "$@"
"""
"""Our pip; the cache of uv has most packages. What is imported is compiled below /tmp, by its first user."""


@dataclass
class Image:
    """The last stage, as it would be started."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    folder: str = "/"

    def path(self, name: str) -> Path:
        """Find a path of the image in our folder."""
        return self.root / name.lstrip("/")

    def mapped(self, text: str) -> str:
        return re.sub(r"(?<![\w.])/(?=(?:src|opt|etc|tmp)(?:/|$))", f"{self.root}/", text)

    @property
    def environment(self) -> dict[str, str]:
        """Its variables, with paths of ours; `$PATH` is what the base image has."""
        paths = f"{self.root / 'base' / 'bin'}:{os.environ['PATH']}"
        variables = {"PATH": "$PATH", **self.env}
        return {name: self.mapped(value).replace("$PATH", paths) for name, value in variables.items()}

    def copy(self, instruction: Instruction) -> None:
        *sources, target = instruction.words
        if "--from=" in instruction.rest:
            assert sources == [target], "stages share their paths here"
            assert self.path(target).exists(), target
            return
        place = self.path(target if target.startswith("/") else f"{self.folder}/{target}")
        for source in sources:
            files = [ROOT / source] if (ROOT / source).is_file() else sorted((ROOT / source).rglob("*"))
            assert files, source
            for path in files:
                name = str(path.relative_to(ROOT))
                if path.is_file() and not is_ignored(name):
                    inner = name.removeprefix(source).lstrip("/")
                    to = place / inner if inner else (place / name if target.endswith("/") else place)
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, to)

    def run(self, instruction: Instruction) -> None:
        command = self.mapped(re.sub(r"^(--\S+\s+)+", "", instruction.rest))
        ended = subprocess.run(
            ["sh", "-ec", command],
            cwd=self.path(self.folder),
            env=os.environ | self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"


def build(root: Path) -> Image:
    """Play the whole file below `root`, with a fresh Python as the base image's."""
    venv.create(root / "base")
    base = root / "base" / "bin"
    (base / "pip").write_text(PIP.format(here=sys.executable, base=base / "python"))
    (base / "pip").chmod(0o755)
    image = Image(root)
    for instruction in INSTRUCTIONS:
        match instruction.name:
            case "FROM":
                image = Image(root)
            case "ENV":
                known = dict(image.env)
                for name, value in instruction.pairs.items():
                    image.env[name] = re.sub(r"\$(\w+)", lambda match: known.get(match[1], match[0]), value)  # noqa: B023
            case "WORKDIR":
                image.folder = instruction.rest
                image.path(image.folder).mkdir(parents=True, exist_ok=True)
            case "COPY":
                image.copy(instruction)
            case "RUN":
                image.run(instruction)
    return image


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """Play the whole file; installing takes half a minute. Other users of the machine may read what comes of it."""
    root = Path(tempfile.mkdtemp(prefix="tracejudge-image-"))
    root.chmod(0o755)
    try:
        made = build(root)
        shutil.rmtree(root / "src")  # the second stage has nothing of it
        (root / "tmp").mkdir(mode=0o1777)
        (root / "tmp").chmod(0o1777)
        shutil.copyfile(ROOT / "deploy" / "tracejudge.toml", made.path(f"{made.folder}/tracejudge.toml"))
        yield made
    finally:
        shutil.rmtree(root)


def as_the_user() -> list[str]:
    """Switch to the image's user, where we may; it keeps the right to read, for this machine's Python may be ours."""
    uid, gid = last("USER").rest.split(":")
    readers = [f"--{kind}=-all,+dac_read_search" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
    switch = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs", *readers]
    may = os.geteuid() == 0 and shutil.which("setpriv")
    return switch if may and subprocess.run([*switch, "true"], check=False).returncode == 0 else []


def started(
    image: Image, words: list[str], variables: Mapping[str, str], *, first_process: bool = False, **how: Any
) -> "subprocess.Popen[str]":
    namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if first_process else []
    # The image holds bytecode already, so it writes none.
    bytecode = {"PYTHONPYCACHEPREFIX": str(image.path("/tmp/bytecode")), "PYTHONDONTWRITEBYTECODE": ""}  # noqa: S108
    return subprocess.Popen(
        [*namespace, *as_the_user(), *words],
        cwd=image.path(image.folder),
        env=image.environment | bytecode | {"TMPDIR": image.environment["HOME"]} | variables,
        stdin=how.pop("stdin", subprocess.DEVNULL),
        text=True,
        **how,
    )


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skip at home where a namespace of processes may not be made, fail in CI."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        missing(f"no namespace of processes: {made.stderr}")


def ended(image: Image, words: list[str], variables: Mapping[str, str] | None = None, **how: Any) -> tuple[int, str]:
    process = started(image, words, variables or {}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def is_healthy(image: Image, variables: Mapping[str, str]) -> bool:
    words = last("HEALTHCHECK").rest.partition(" CMD ")[2]
    return ended(image, msgspec.json.decode(words), variables)[0] == 0


def written(image: Image) -> dict[str, float]:
    """Return the time of the last change of each file outside of /tmp."""
    outside = (path for path in image.root.rglob("*") if (image.root / "tmp") not in path.parents)
    return {str(path): path.lstat().st_mtime for path in outside if path != image.root / "tmp"}


@BUILDS
def test_the_image_holds_the_application_and_no_tools(image: Image) -> None:
    """Its environment is small, in blocks of the disk, with the bytecode that pip makes; and it starts the verbs."""
    script = (
        "import importlib.metadata as m; print(*sorted(f'{d.name.lower()}=={d.version}' for d in m.distributions()))"
    )
    status, output = ended(image, ["python", "-c", script])
    installed = set(output.split())
    own = {f"{name}=={project()['version']}" for name in ("tracejudge", "tracejudge-worker")}
    assert status == 0
    assert own <= installed
    assert {plain(name) for name in installed - own} <= pinned()
    assert not {name.split("==")[0] for name in installed} & {"pip", "hatchling", "pytest", "mypy"}
    files = (path for path in image.path("/opt/tracejudge").rglob("*") if not path.is_symlink())
    # The bytecode of a module takes about as many blocks as its source.
    blocks = sum(path.lstat().st_blocks * (2 if path.suffix == ".py" else 1) for path in files)
    assert blocks * 512 < MAX_MIB << 20
    entrypoint = last("ENTRYPOINT").words
    assert ended(image, [*entrypoint, "--help"])[0] == 0
    status, output = ended(image, [*entrypoint, *last("CMD").words, "--help"])
    assert (status, "--roles" in output) == (0, True)


@BUILDS
@pytest.mark.usefixtures("namespaces")
def test_as_process_1_it_judges_writes_nothing_outside_tmp_and_ends_with_status_0_at_sigterm(
    image: Image, redis_url: str, prefix: str, tmp_path: Path
) -> None:
    """With compose's configuration, as the image's user, who may write nowhere else; the health check follows it.

    The first process of a PID namespace gets no signal without a handler, as in a pod, which has no init.
    """
    port, log = free_port(), tmp_path / "log"
    variables = {
        "TRACEJUDGE_REDIS_URL": redis_url,
        "TRACEJUDGE_PREFIX": prefix,
        "TRACEJUDGE_METRICS_PORT": str(port),
        "HTTP_PROXY": "http://127.0.0.1:9",  # the health check asks no proxy
    }
    before = written(image)
    assert not is_healthy(image, variables)
    words = [*last("ENTRYPOINT").words, *last("CMD").words]
    with log.open("w") as output:
        namespace = started(image, words, variables, first_process=True, stdout=output, stderr=output)
    try:
        wait_until(lambda: is_healthy(image, variables), timeout_s=120, what="the worker to be healthy")
        with (ROOT / "judges" / "samples" / "support-bot.jsonl").open() as traces:
            assert ended(image, ["tracejudge", "publish", "-"], variables, stdin=traces)[0] == 0
        wait_until(lambda: scrape(port).total("tracejudge_verdicts_total") > 0, what="a verdict")
        (first,) = Path(f"/proc/{namespace.pid}/task/{namespace.pid}/children").read_text().split()
        inside = Path(f"/proc/{first}/status").read_text()
        assert re.search(r"^NSpid:\t\d+\t1$", inside, re.MULTILINE), inside
        os.kill(int(first), signal.SIGTERM)
        assert namespace.wait(60) == 0, log.read_text()
    finally:
        namespace.kill()
        namespace.wait()
    with closing(Store(redis_url, Keys(prefix))) as store:
        assert not store.call(lambda client: client.hlen(store.keys.holders))
    assert not is_healthy(image, variables)
    assert written(image) == before
