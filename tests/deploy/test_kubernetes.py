"""The Helm chart: its objects are valid, and in step with the code."""

import json
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import yaml
from chart import (
    CHART,
    CONFIG,
    EXAMPLES,
    Cluster,
    containers,
    everything,
    hook,
    load_chart,
    of_kind,
    pods,
    problems,
    project,
    rendered,
    selected,
    settings,
    values_of,
    written,
)
from queries import selectors
from support.cases import each_case
from support.lazy import Lazy
from support.processes import Program, free_port, wait_until
from support.tables import read_table

from deploy.dashboards.grafana import FOLDER as DASHBOARDS
from deploy.rules.alert_settings import FOLDER, load
from deploy.rules.rule_files import FOLDER as RULES
from docs.metrics import worker_metrics
from judges.models.credentials import is_guarded
from worker.celery import make_app
from worker.cli import cli
from worker.core.config.reading import key_types
from worker.core.config.settings import Settings
from worker.core.storage.client import LAYOUT
from worker.features.board.feature import BOARD
from worker.features.gateway.feature import GATEWAY

helm, helm_chart, helm_config = Lazy("helm_python"), Lazy("helm_python.chart"), Lazy("helm_python.config")
PATHS = {"/healthz", "/readyz", "/metrics"}
PAGE = (FOLDER.parent / "docs" / "kubernetes.md").read_text(encoding="utf-8")
GOOD = values_of("minimal")
TABLE = read_table(__file__, "chart")
JUDGES = {"all": {"roles": ["ingest", "export", "monitor"]}, "judge": {"roles": ["judge"], "queues": ["a"]}}
TWO_MODELS = (
    '[models.default]\nmodel = "a"\nbase_url = "http://x/v1"\n[models.b]\nmodel = "b"\nbase_url = "http://x/v1"\n'
)
ALL = ["ingest", "judge", "export", "monitor"]
METADATA = ("169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")


each_example = each_case("example", EXAMPLES)


def test_thirteen_examples_are_valid_in_three_versions_of_kubernetes() -> None:
    """Each different object once: many are those of other examples too."""
    assert len(EXAMPLES) == 13
    different = {
        json.dumps(each, sort_keys=True): each for objects in everything().values() for each in objects.values()
    }
    kinds = {each["kind"] for each in different.values()}
    assert {"Deployment", "Service", "Ingress", "PodMonitor", "ServiceMonitor", "PrometheusRule"} < kinds
    assert {"ConfigMap", "PodDisruptionBudget", "NetworkPolicy", "ScaledObject"} < kinds
    assert not [problem for each in different.values() for problem in problems(each)]
    # A misspelt field of any kind is a problem.
    by_kind = {each["kind"]: each for each in different.values() if "spec" in each}
    assert len(by_kind) == 9
    for kind, each in by_kind.items():
        for wrong in (
            {**each, "replica": 1},
            *({**each, part: {**each[part], "replica": 1}} for part in ("spec", "metadata")),
        ):
            assert problems(wrong), (kind, wrong)


@each_example
def test_each_container_starts_with_its_arguments_variables_and_files(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = everything()[example]
    for name, container in containers(objects):
        verb, *arguments = container["args"]
        # A command keeps the help option of the first context that it gets, for all tests of this process.
        context = click.Context(cli, help_option_names=list(cli.context_settings["help_option_names"]))
        command = cli.get_command(context, verb)
        options = command.make_context(verb, list(arguments), parent=context).params
        ours = settings(objects, tmp_path, container)
        fields = {
            variable["name"].removeprefix("TRACEJUDGE_").lower()
            for variable in container["env"]
            if "TRACEJUDGE_" in variable["name"]
        }
        assert fields <= set(key_types()), name
        listens = {port["name"]: port["containerPort"] for port in container["ports"]}
        match verb:
            case "worker":
                assert listens == {"metrics": ours.metrics_port} == {"metrics": Settings().metrics_port}
                if options["queues"]:
                    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
                    assert ours.queue(options["queues"]) in make_app(ours).tracejudge_queues, name
            case "gateway":
                assert listens == {"http": options["port"], "metrics": GATEWAY.read(ours).metrics_port}
                assert options["port"] == GATEWAY.read(Settings()).port
                assert GATEWAY.read(ours).tokens
            case "board":
                assert listens == {"http": options["port"], "metrics": options["metrics_port"]}
                assert options["port"] == BOARD.read(Settings()).port
                assert BOARD.read(ours).token_env in {variable["name"] for variable in container["env"]}
        grace = objects["Deployment", name]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace == ours.grace_s + 25
        scheme = "HTTPS" if ours.metrics_tls_cert else "HTTP"
        for probe, path in (("startup", "/healthz"), ("liveness", "/healthz"), ("readiness", "/readyz")):
            assert container[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "metrics", "scheme": scheme}
        assert len({mount["name"] for mount in container["volumeMounts"]}) == len(container["volumeMounts"]), name
        assert {path for path in (ours.metrics_token_file, ours.metrics_tls_cert) if path} <= {
            f"{mount['mountPath']}/{file}" for mount in container["volumeMounts"] for file in ("token", "tls.crt")
        } | {None}


@pytest.mark.slow("starts a worker")
def test_probes_and_scrapes_are_answered(redis_url: str, prefix: str, tmp_path: Path) -> None:
    """The container's own arguments, variables and files, with other ports; process and pages are those of a pod."""
    objects, port = everything()["minimal"], free_port()
    container = dict(containers(objects))["tracejudge-worker-all"]
    written(objects, tmp_path)
    variables = {variable["name"]: variable.get("value", "a-token-of-a-Secret") for variable in container["env"]}
    own = {"REDIS_URL": redis_url, "PREFIX": prefix, "METRICS_PORT": str(port)}
    environment = variables | {f"TRACEJUDGE_{name}": value for name, value in own.items()}
    with (
        Program("-m", "worker.cli", *container["args"], folder=tmp_path, env=environment) as program,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client,
    ):

        def answers(probe: str) -> bool:
            try:
                return client.get(container[probe]["httpGet"]["path"]).status_code == 200
            except httpx.TransportError:
                return False

        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            wait_until(lambda probe=probe: answers(probe), what=probe)
        # The chart's hook, which `helm test` runs.
        doctor = ("-m", "worker.cli", *hook("minimal")["spec"]["containers"][0]["args"], "--json")
        with Program(*doctor, folder=tmp_path, env=environment) as ran:
            ran.wait()
        results = {part["name"]: part["result"] for part in json.loads(ran.stdout)["parts"]}
        # Roles are found by heartbeats, some seconds after the start.
        assert {results[part] for part in ("configuration", "redis", "broker", "model default")} == {"ok"}, ran.stdout
        page = client.get("/metrics")
        assert (page.status_code, "tracejudge_traces_" in page.text) == (200, True)
        assert program.terminate() == 0


def test_every_role_and_queue_of_the_split_example_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    objects = everything()["roles"]
    run = [dict(zip(each["args"][1::2], each["args"][2::2], strict=True)) for _, each in containers(objects)]
    assert sorted(each["--roles"] for each in run) == ["export", "ingest", "judge", "judge", "monitor"]
    _, container = next(containers(objects))
    ours = settings(objects, tmp_path, container)
    served = {ours.queue(each["--queues"]) for each in run if "--queues" in each}
    assert served == make_app(ours).tracejudge_queues


@each_example
def test_each_deployment_selects_its_own_pods_and_mounts_what_there_is(example: str) -> None:
    objects = everything()[example]
    for name, each in of_kind(objects, "Deployment").items():
        spec = each["spec"]["template"]["spec"]
        budget = of_kind(objects, "PodDisruptionBudget")[name]
        spread = [part["labelSelector"] for part in spec.get("topologySpreadConstraints", ())]
        assert all(
            selected(objects, by) == {name} for by in (each["spec"]["selector"], budget["spec"]["selector"], *spread)
        )
        maps = {volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume}
        assert maps == {CONFIG[1]}
        mounted = {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}
    for each in of_kind(objects, "ScaledObject").values():
        assert "replicas" not in objects["Deployment", each["spec"]["scaleTargetRef"]["name"]]["spec"]


@each_example
def test_services_policies_and_monitors_lead_to_ports_of_pods(example: str) -> None:
    objects = everything()[example]
    listens = {name: {part["name"] for part in container["ports"]} for name, container in containers(objects)}
    for name, each in of_kind(objects, "Service").items():
        assert selected(objects, {"matchLabels": each["spec"]["selector"]}) == {name}
        assert listens[name] == {part["targetPort"] for part in each["spec"]["ports"]}
    for each in of_kind(objects, "Ingress").values():
        backend = each["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
        assert backend["port"]["name"] in {
            part["name"] for part in objects["Service", backend["name"]]["spec"]["ports"]
        }
    for each in of_kind(objects, "NetworkPolicy").values():
        named = {port["port"] for rule in each["spec"]["ingress"] for port in rule["ports"]}
        assert all(listens[name] == named for name in selected(objects, each["spec"]["podSelector"]))
    for kind, endpoints in (("PodMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "endpoints")):
        for each in of_kind(objects, kind).values():
            assert selected(objects, each["spec"]["selector"])
            assert {(part["port"], part["path"]) for part in each["spec"][endpoints]} == {("metrics", "/metrics")}
    # The rules ask for the job that the operator takes from this label.
    by = {entry["spec"]["jobLabel"] for entry in of_kind(objects, "PodMonitor").values()}
    assert {pod["metadata"]["labels"][label] for label in by for _, pod in pods(objects)} <= {load().job}


@each_example
def test_pods_have_no_rights_and_hold_no_secret(example: str) -> None:
    objects = everything()[example]
    assert not of_kind(objects, "Secret")
    assert not problems(hook(example))
    for spec in (hook(example)["spec"], *(pod["spec"] for _, pod in pods(objects))):
        (container,) = spec["containers"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]
        mounts = container["volumeMounts"]
        assert {mount["mountPath"] for mount in mounts if not mount.get("readOnly")} == {"/tmp"}  # noqa: S108
    assert "password" not in json.dumps([pod for _, pod in pods(objects)]).lower()


def test_rules_and_dashboards_are_the_generated_ones() -> None:
    objects = everything()["monitoring"]
    links = values_of("monitoring")["monitoring"]
    for path in RULES.glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        text = text.replace(load().runbook_base, links["runbookUrl"]).replace(load().grafana_base, links["grafanaUrl"])
        assert objects["PrometheusRule", f"tracejudge-{path.stem}"]["spec"] == yaml.safe_load(text)
    assert "localhost" not in json.dumps(list(of_kind(objects, "PrometheusRule").values()))
    for path in DASHBOARDS.glob("*.json"):
        paths = objects["ConfigMap", f"tracejudge-dashboard-{path.stem.removeprefix('tracejudge-')}"]
        assert json.loads(paths["data"][path.name]) == json.loads(path.read_text(encoding="utf-8"))
        assert len(paths["data"][path.name]) < 1 << 20  # what a ConfigMap may hold


def test_triggers_ask_for_gauges_that_exist_and_add_workers_as_they_should(promtool: str, tmp_path: Path) -> None:
    """Computed by promtool: one of two workers is saturated; a worker of another Deployment counts for nothing."""
    objects = everything()["scaling"]
    scaled = objects["ScaledObject", "tracejudge-worker-all"]["spec"]
    queries = [trigger["metadata"]["query"] for trigger in scaled["triggers"]]
    for query in queries:
        for metric, matchers in selectors(query):
            assert metric in {rule.full_name for rule in worker_metrics()}, query
            assert {"job=", "namespace="} <= set(re.findall(r"\w+=", matchers)), query
    inputs = [{"series": name, "values": f"{value}x10"} for name, value in TABLE["triggers"].items()]
    moments = [
        {"expr": query, "eval_time": "5m", "exp_samples": [{"labels": "{}", "value": value}]}
        for query, value in zip(queries, (12_000, 250, 1.25), strict=True)
    ]
    without = [{"expr": queries[2], "eval_time": "5m", "exp_samples": [{"labels": "{}", "value": 0}]}]
    tests = [{"interval": "1m", "input_series": inputs, "promql_expr_test": moments}, {"promql_expr_test": without}]
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"tests": tests}))
    ran = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    thresholds = [float(trigger["metadata"]["threshold"]) for trigger in scaled["triggers"]]
    assert thresholds == [5_000, 100, 0.8]


@each_case(("values", "says"), TABLE["refusals"], ids=lambda value: str(value)[:80])
def test_values_that_cannot_work_fail_with_a_sentence(values: dict[str, Any], says: str) -> None:
    fields = {**GOOD, **values}
    name = "a-release-with-a-long-name" if "too long" in says else "tracejudge"
    with pytest.raises(helm.HelmError) as error:
        load_chart().render(fields, name=name)
    assert re.search(says, str(error.value)), error.value


def test_parts_may_run_elsewhere_and_addresses_may_be_settings() -> None:
    made = rendered({**GOOD, "partial": True, "workers": JUDGES, "config": TWO_MODELS})
    assert len(of_kind(made, "Deployment")) == 2
    address = {"name": "TRACEJUDGE_REDIS_URL", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}
    for values in ({"config": 'redis_url = "redis://redis"'}, {"env": [address]}):
        (_, container) = next(containers(rendered(values)))
        assert [variable for variable in container["env"] if variable["name"] == address["name"]] == values.get(
            "env", []
        )


def test_a_deployment_has_variables_and_secrets_of_its_own_beside_those_of_all() -> None:
    """Names of Secrets may hold dots, be those of other volumes, and be given twice."""
    made = rendered({**GOOD, **TABLE["own"]})
    assert not [problem for each in made.values() for problem in problems(each)]
    values = {}
    for name, pod in pods(made):
        (container,) = pod["spec"]["containers"]
        volumes = {
            volume["name"]: volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume
        }
        assert len({volume["name"] for volume in pod["spec"]["volumes"]}) == len(volumes) + 2, name
        assert all(re.fullmatch(r"[a-z0-9-]+", volume) for volume in volumes), name
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        variables = {
            each["name"]: each["value"] for each in container["env"] if not each["name"].startswith("TRACEJUDGE_")
        }
        assert len([each["name"] for each in container["env"]]) == len({each["name"] for each in container["env"]}), (
            name
        )
        mounted = {path: volumes[volume] for path, volume in mounts.items() if volume in volumes}
        values[name.removeprefix("tracejudge-")] = [variables, mounted]
    assert values == TABLE["own_expected"]


def test_workers_of_some_partitions_are_scaled_by_their_own_gauges() -> None:
    values = values_of("scaling")
    workers = {"all": {**values["workers"]["all"], "partitions": "0,1-7", "roles": ALL}}
    # Of an address in a Secret the chart sees no cluster, only that partitions are named.
    made = rendered({**values, "broker": {"secret": "b"}, "workers": workers})
    (worker,) = (container for _, container in containers(made))
    assert worker["args"][-2:] == ["--partitions", "0,1-7"]
    queries = [
        container["metadata"]["query"]
        for container in made["ScaledObject", "tracejudge-worker-all"]["spec"]["triggers"]
    ]
    assert ["pod=~" in query for query in queries] == [True, True, True]
    unlike = everything()["scaling"]["ScaledObject", "tracejudge-worker-all"]["spec"]["triggers"]
    assert ["pod=~" in kind["metadata"]["query"] for kind in unlike] == [False, False, True]


@each_example
def test_outgoing_connections_reach_pods_and_addresses_but_no_metadata_of_a_cloud(example: str) -> None:
    """With Cilium a block of addresses contains no pod, so pods are selected as well."""
    for name, each in of_kind(everything()[example], "NetworkPolicy").items():
        if values_of(example).get("networkPolicy", {}).get("egress"):
            continue
        _, anywhere = each["spec"]["egress"]
        assert {"namespaceSelector": {}} in anywhere["to"], name
        blocks = [block["ipBlock"] for block in anywhere["to"] if "ipBlock" in block]
        assert {block["cidr"] for block in blocks} == {"0.0.0.0/0", "::/0"}, name
        refused = [ip_network(each) for block in blocks for each in block["except"]]
        for address in METADATA:
            assert is_guarded(address), address
            assert any(ip_address(address) in network for network in refused), (name, address)


def test_parts_can_be_switched_off_and_all_on_at_once() -> None:
    off = {"networkPolicy": {"enabled": False}, "podDisruptionBudget": False, "topologyKeys": []}
    assert {kind for kind, _ in rendered({**GOOD, **off})} == {"Deployment", "ConfigMap"}
    for user, user_ids in ((1_000_660_000, {1_000_660_000}), (None, {None})):
        specs = [pod["spec"]["securityContext"] for _, pod in pods(rendered({**GOOD, "user": user}))]
        assert {spec.get(name) for spec in specs for name in ("runAsUser", "runAsGroup", "fsGroup")} == user_ids
        assert all(spec["runAsNonRoot"] for spec in specs)
    made = rendered({**GOOD, **TABLE["everything"]})
    assert not [problem for each in made.values() for problem in problems(each)]
    assert made[CONFIG]["data"].keys() == {"canary.jsonl", "objectives.toml", "tracejudge.toml"}
    assert {pod["spec"]["terminationGracePeriodSeconds"] for _, pod in pods(made)} == {115}
    assert {
        each["spec"]["podMetricsEndpoints"][0]["authorization"]["credentials"]["name"]
        for each in of_kind(made, "PodMonitor").values()
    } == {"a"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as server:
        yield server


@each_case(("layout", "version", "upgrade", "says"), TABLE["upgrades"])
def test_an_upgrade_that_loses_data_or_skips_a_version_is_refused(
    layout: str, version: str, upgrade: dict[str, Any], says: str | None, cluster: Cluster
) -> None:
    """Helm looks up the installed ConfigMap. What passes the guard fails later: this API server has no schemas."""
    cluster.annotations = {"tracejudge/layout": layout, "tracejudge/version": version}
    values = {**GOOD, "upgrade": upgrade}
    with helm_config.Config(namespace="judging", kubeconfig_content=cluster.kubeconfig) as config:
        with pytest.raises(helm.HelmError) as error:
            config.install(load_chart(), "tracejudge", values, dry_run="server", namespace="judging")
        assert re.search(says or "failed to download openapi", str(error.value)), error.value


def test_the_chart_is_of_this_version_and_layout() -> None:
    about = load_chart().metadata
    assert about["appVersion"] == project()["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(-[a-z]+\.\d+)?", about["version"])
    assert about["description"] == project()["description"]
    assert about["annotations"]["tracejudge/layout"] == LAYOUT.decode()
    installed = everything()["minimal"][CONFIG]["metadata"]["annotations"]
    assert installed == {"tracejudge/layout": LAYOUT.decode(), "tracejudge/version": about["version"]}


def test_helm_finds_nothing_to_complain_of_and_an_archive_renders_the_same(tmp_path: Path) -> None:
    """The archive holds the files that the folder links to."""
    findings = helm_chart.lint(CHART, values_of("roles"), strict=True)
    assert not findings["errors"]
    assert [finding["error"] for finding in findings["messages"]] == ["icon is recommended"]
    with helm_chart.Chart.load(helm_chart.package(CHART, destination=tmp_path)) as archive:
        for example in ("minimal", "monitoring"):
            values = values_of(example)
            assert archive.render(values, name="tracejudge") == load_chart().render(values, name="tracejudge")


def test_the_page_explains_every_value_and_example() -> None:
    shown = set(re.findall(r"`([\w.]+)`", PAGE))
    groups = {name.partition(".")[0] for name in shown}
    assert set(load_chart().values) <= groups
    assert {f"{example}.yaml" for example in EXAMPLES} <= set(re.findall(r"[\w-]+\.yaml", PAGE))


def test_commands_of_the_page_render() -> None:
    """Each `helm` line of the page is rendered with its files and settings."""
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.split("\n")]
    commands = map(shlex.split, "\n".join(lines).replace("\\\n", "").splitlines())
    helm = [words for words in commands if words[:1] == ["helm"] and words[1] in {"install", "upgrade", "template"}]
    assert [words[1] for words in helm].count("template") == 1
    assert len(helm) == 4
    for words in helm:
        assert (FOLDER.parent / words[3]).resolve() == CHART
        values: dict[str, Any] = {}
        for option, value in pairwise(words):
            if option == "-f":
                values |= yaml.safe_load((FOLDER.parent / value).read_text(encoding="utf-8"))
            elif option == "--set":
                name, _, of = value.partition("=")
                values |= {"redis": {"secret": of}} if name == "redis.secret" else {name: of}
        objects = rendered(values)
        assert objects
        if words[1] == "template":
            kinds = Counter(kind for kind, _ in objects)
            (shown,) = re.findall(r"uniq -c\n```\n\n```text\n(.*?)\n```", PAGE, re.DOTALL)
            assert [tuple(line.split()) for line in shown.splitlines()] == [
                (str(count), "kind:", kind) for kind, count in sorted(kinds.items())
            ]
