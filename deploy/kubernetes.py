"""Kustomize manifests, rendered from the Helm chart: the chart's smallest example is the base of all others.

An overlay holds what differs: objects that are added, patches (RFC 6902) of objects that change, and the files of the
configuration. Kustomize names the ConfigMap by its content, so pods are replaced when it changes; the chart has an
annotation for that.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import yaml
from helm_python.chart import Chart

from deploy.generated import yaml_text
from deploy.rules.table import FOLDER

CHART: Final = FOLDER / "helm" / "tracejudge"
EXAMPLES: Final = CHART / "examples"
KUSTOMIZE: Final = FOLDER / "kustomize"
BASE: Final = "minimal"
"""The example that is the base."""
NAMESPACE: Final = "tracejudge"
CONFIG: Final = ("ConfigMap", "tracejudge-config")
_NOTE: Final = "# Written by `make generate` from deploy/helm/tracejudge/{}; change that, not this file.\n"
_HELM_ONLY: Final = ("app.kubernetes.io/managed-by", "checksum/config")

Objects = dict[tuple[str, str], dict[str, Any]]


@cache
def chart() -> Chart:
    """Load the chart as it is in the folder."""
    return Chart.load(CHART)


def values(example: str) -> dict[str, Any]:
    """Read the values of an example."""
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text(encoding="utf-8"))
    return found


def examples() -> list[str]:
    """List the names of all examples."""
    return sorted(file.stem for file in EXAMPLES.glob("*.yaml"))


def rendered(given: Mapping[str, Any], **release: Any) -> Objects:
    """Render the chart into objects by kind and name, without hooks."""
    files = chart().render(dict(given), name="tracejudge", namespace=NAMESPACE, **release)
    documents = (
        one for name, text in sorted(files.items()) if name.endswith(".yaml") for one in yaml.safe_load_all(text)
    )
    return {
        (one["kind"], one["metadata"]["name"]): one
        for one in documents
        if one and "helm.sh/hook" not in one["metadata"].get("annotations", ())
    }


def plain(given: Mapping[str, Any]) -> Objects:
    """Render the chart without what only Helm needs."""
    return {key: _without(one, _HELM_ONLY) for key, one in rendered(given).items()}


def generate() -> dict[str, dict[str, str]]:
    """Make the files of each folder, by the folder's path below ``deploy``."""
    base = plain(values(BASE))
    config = base.pop(CONFIG)
    meta = {"labels": config["metadata"]["labels"], "annotations": config["metadata"]["annotations"]}
    folders = {
        "prometheus": {
            "kustomization.yaml": _kustomization(
                "values.yaml", configMapGenerator=[{"name": CONFIG[1], "files": ["objectives.toml"]}]
            )
        },
        "grafana/dashboards": {"kustomization.yaml": _dashboards()},
        "kustomize/base": {
            "objects.yaml": _documents(f"examples/{BASE}.yaml", base.values()),
            "tracejudge.toml": config["data"]["tracejudge.toml"],
            "kustomization.yaml": _kustomization(
                f"examples/{BASE}.yaml",
                resources=["objects.yaml", "../../prometheus"],
                configMapGenerator=[
                    {"name": CONFIG[1], "behavior": "merge", "files": ["tracejudge.toml"], "options": meta}
                ],
            ),
        },
    }
    base[CONFIG] = config
    overlays = {example: _overlay(example, base) for example in examples() if example != BASE}
    return folders | {f"kustomize/examples/{example}": files for example, files in overlays.items()}


def _overlay(example: str, base: Objects) -> dict[str, str]:
    """Make the files of an overlay that turns the base into an example."""
    wanted = plain(values(example))
    origin = f"examples/{example}.yaml"
    config = {name: text for name, text in wanted[CONFIG]["data"].items() if base[CONFIG]["data"].get(name) != text}
    has_dashboards = any(name.startswith("tracejudge-dashboard-") for _, name in wanted)
    added = [one for key, one in wanted.items() if key not in base and not key[1].startswith("tracejudge-dashboard-")]
    patches: list[dict[str, Any]] = []
    for key, one in base.items():
        target = {"kind": key[0], "name": key[1]}
        if key not in wanted:
            deleted = {
                "apiVersion": one["apiVersion"],
                "kind": key[0],
                "metadata": {"name": key[1]},
                "$patch": "delete",
            }
            patches.append({"target": target, "patch": yaml_text(deleted)})
        elif key != CONFIG and (steps := list(_steps("", one, wanted[key]))):
            patches.append({"target": target, "patch": yaml_text(steps)})
    parts: dict[str, Any] = {"resources": ["../../base"]}
    parts["resources"] += ["objects.yaml"] if added else []
    parts["resources"] += ["../../../grafana/dashboards"] if has_dashboards else []
    if config:
        parts["configMapGenerator"] = [{"name": CONFIG[1], "behavior": "merge", "files": sorted(config)}]
    if patches:
        parts["patches"] = patches
    objects = {"objects.yaml": _documents(origin, added)} if added else {}
    return {"kustomization.yaml": _kustomization(origin, **parts), **objects, **config}


def _dashboards() -> str:
    """Make ConfigMaps of the folder's dashboards for Grafana's sidecar."""
    made = plain({**values(BASE), "monitoring": {"dashboards": True}})
    maps = [one for (_, name), one in made.items() if name.startswith("tracejudge-dashboard-")]
    generators = [{"name": one["metadata"]["name"], "files": list(one["data"])} for one in maps]
    options = {"disableNameSuffixHash": True, "labels": maps[0]["metadata"]["labels"]}
    return _kustomization("values.yaml", configMapGenerator=generators, generatorOptions=options)


def _kustomization(origin: str, **parts: Any) -> str:
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return _NOTE.format(origin) + yaml_text(head | parts)


def _documents(origin: str, objects: Any) -> str:
    return _NOTE.format(origin) + "---\n".join(map(yaml_text, objects))


def _without(value: Any, names: tuple[str, ...]) -> Any:
    """Copy a document without some labels and annotations, and without annotations that are then empty."""
    if isinstance(value, dict):
        kept = {name: _without(each, names) for name, each in value.items() if name not in names}
        return {name: each for name, each in kept.items() if name != "annotations" or each}
    return [_without(each, names) for each in value] if isinstance(value, list) else value


def _steps(path: str, old: Any, new: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a patch that turns ``old`` into ``new``; a list whose items moved is replaced as a whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}, key=str):
            step = f"{path}/{re.sub('[~/]', lambda found: '~0' if found[0] == '~' else '~1', str(name))}"
            if name not in new:
                yield {"op": "remove", "path": step}
            elif name not in old:
                yield {"op": "add", "path": step, "value": new[name]}
            else:
                yield from _steps(step, old[name], new[name])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _steps(f"{path}/{number}", before, after)
    elif isinstance(old, list) and isinstance(new, list) and new[: len(old)] == old:
        yield from ({"op": "add", "path": f"{path}/-", "value": item} for item in new[len(old) :])
    elif old != new:
        yield {"op": "replace", "path": path, "value": new}
