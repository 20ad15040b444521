"""The chart as tests read it: rendered once for each example, with schemas of Kubernetes and of custom resources."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from referencing import Registry, Resource
from support.lazy import Lazy
from support.loopback import LoopbackServer

from deploy.rules.alert_settings import FOLDER
from worker.core.config.loading import load
from worker.core.config.settings import Settings

helm, jsonschema = Lazy("helm_python.chart"), Lazy("jsonschema")
VERSIONS = ("1.29.0", "1.33.0", "1.37.0")
CHART = FOLDER / "helm" / "tracejudge"
CONFIG = ("ConfigMap", "tracejudge-config")
EXAMPLES = sorted(file.stem for file in (CHART / "examples").glob("*.yaml"))
Objects = dict[tuple[str, str], dict[str, Any]]
_CUSTOM = json.loads(Path(__file__).with_name("custom_resources.json").read_text())


@cache
def schemas(version: str) -> Traversable:
    """Return the folder of a version's schemas; the package that holds them takes 50 MB."""
    return files("kubernetes_validate") / f"kubernetes-json-schema/v{version}-local-strict"


@cache
def load_chart() -> Any:
    return helm.Chart.load(CHART)


def values_of(example: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((CHART / "examples" / f"{example}.yaml").read_text(encoding="utf-8"))
    return values


def rendered(values: Mapping[str, Any], **release: Any) -> Objects:
    """Render the chart into objects by kind and name, without hooks."""
    texts = load_chart().render(dict(values), name="tracejudge", namespace="tracejudge", **release)
    documents = (
        document
        for name, text in sorted(texts.items())
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(text)
    )
    return {
        (document["kind"], document["metadata"]["name"]): document
        for document in documents
        if document and "helm.sh/hook" not in document["metadata"].get("annotations", ())
    }


@cache
def everything() -> dict[str, Objects]:
    """Render every example, in one process."""
    return {example: rendered(values_of(example)) for example in EXAMPLES}


def pods(objects: Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return name and template of the pods of each Deployment."""
    for (kind, name), each in objects.items():
        if kind == "Deployment":
            yield name, each["spec"]["template"]


def containers(objects: Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, pod in pods(objects):
        (container,) = pod["spec"]["containers"]
        yield name, container


def written(objects: Objects, folder: Path) -> Path:
    """Write the files of the ConfigMap as pods see them, and return that of the configuration."""
    for name, text in objects[CONFIG]["data"].items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "tracejudge.toml"


def settings(objects: Objects, folder: Path, container: Mapping[str, Any]) -> Settings:
    """Load the configuration as a container does; keys and addresses of Secrets are invented."""
    environment = {
        variable["name"]: variable.get("value")
        or f"redis://:{variable['valueFrom']['secretKeyRef']['key']}@secret:6379/0"
        for variable in container["env"]
    }
    words = container["args"]
    options = dict(zip(words[1::2], words[2::2], strict=True))
    served = {"served_partitions": options.get("--partitions")}
    return load(environment, str(written(objects, folder)), served, needs_rules=words[0] == "worker")


def problems(manifest: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with an object, in any version of Kubernetes or by the schema of its custom resource."""
    name = manifest["kind"]
    if name in _CUSTOM["versions"]:
        result = list(_custom(name).iter_errors(manifest))
        return [f"{name} {error.json_path}: {error.message}" for error in result]
    api = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", manifest["apiVersion"])
    return [
        f"{version} {name} {error.json_path}: {error.message}"
        for version in VERSIONS
        for error in _native(version, f"{name.lower()}-{api}").iter_errors(manifest)
    ]


@cache
def _custom(kind: str) -> Any:
    keys = {
        "apiVersion": {"const": _CUSTOM["versions"][kind]},
        "kind": {"const": kind},
        "metadata": {"$ref": "#/$defs/metadata"},
        "spec": _CUSTOM["$defs"]["kinds"][kind],
    }
    schema = {"$defs": _CUSTOM["$defs"], "properties": keys, "required": list(keys), "additionalProperties": False}
    return jsonschema.Draft202012Validator(schema)


@cache
def _native(version: str, name: str) -> Any:
    folder = schemas(version)
    schema = json.loads((folder / f"{name}.json").read_text())
    return jsonschema.Draft202012Validator(schema, registry=Resource.from_contents(schema) @ _definitions(version))


@cache
def _definitions(version: str) -> "Registry[Any]":
    """The definitions that all schemas of a version share."""
    text = (schemas(version) / "_definitions.json").read_text()
    return Resource.from_contents(json.loads(text)) @ Registry()


def project() -> dict[str, Any]:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"]


def of_kind(objects: Objects, kind: str) -> dict[str, dict[str, Any]]:
    return {name: each for (names, name), each in objects.items() if names == kind}


def selected(objects: Objects, selector: Mapping[str, Any]) -> set[str]:
    """Name the Deployments whose pods a selector means."""
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(objects)}
    return {name for name, has in labels.items() if selector["matchLabels"].items() <= has.items()}


def hook(example: str) -> dict[str, Any]:
    """Render the pod of `helm test`."""
    texts = load_chart().render(values_of(example), name="tracejudge").values()
    (result,) = (text for text in texts if "helm.sh/hook" in text)
    pod: dict[str, Any] = yaml.safe_load(result)
    return pod


class Cluster(LoopbackServer):
    """As much of an API server as `lookup` asks for: a ConfigMap of an installed release, with its annotations."""

    def __init__(self) -> None:
        super().__init__()
        self.annotations: Mapping[str, str] = {}

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/{path:.*}", self._answer)]

    @property
    def kubeconfig(self) -> str:
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        parts = {
            "clusters": [{"cluster": {"server": self.root_url}, "name": "c"}],
            "users": [{"name": "u", "user": {}}],
        }
        return json.dumps(
            {"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [context], **parts}
        )

    async def _answer(self, request: web.Request) -> web.Response:
        about = {"metadata": {"name": CONFIG[1], "annotations": self.annotations}}
        resources = [
            {"name": f"{kind.lower()}s", "kind": kind, "namespaced": True, "singularName": "", "verbs": ["get", "list"]}
            for kind in ("ConfigMap", "Secret")
        ]
        answers = {
            "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": resources},
            f"/api/v1/namespaces/judging/configmaps/{CONFIG[1]}": {"apiVersion": "v1", "kind": "ConfigMap", **about},
        }
        failure = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
        return web.json_response(answers.get(request.path, failure), status=200 if request.path in answers else 404)
