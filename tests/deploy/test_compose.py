"""compose.yaml and the files it mounts, against the code and each other; and its programs, as far as they are here."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from chart import project
from compose_file import DEPLOY, addresses, mounts, ports, read_yaml, services
from redis import Redis
from support.cases import each_case
from support.otlp import OtlpReceiver, failing
from support.processes import Program, free_port, wait_until
from support.redis_kinds import TunedRedis

from judges.core.faults import first_raised
from worker.base.commands.groups import commands
from worker.base.delivery.settings import OTLP_ENDPOINT
from worker.base.embedded import find_servers
from worker.base.monitor.objectives import FILE_NAME, read_objectives
from worker.core.config.loading import load
from worker.core.config.settings import Settings
from worker.features.board.feature import BOARD
from worker.features.gateway.feature import GATEWAY

OWN = {"worker", "gateway", "board", "inbox", "traffic"}
# Where each service listens inside the network: what the images do by default, and what the files here say.
LISTENS = {
    "redis": {6379},
    "worker": {Settings().metrics_port},
    "gateway": {GATEWAY.read(Settings()).port, GATEWAY.read(Settings()).metrics_port},
    "board": {BOARD.read(Settings()).port, 9811},
    "collector": {4318},
    "jaeger": {4317, 13133, 16686},
    "prometheus": {9090},
    "alertmanager": {9093},
    "inbox": {8080},
    "grafana": {3000},
    "traffic": set[int](),
}
ELSEWHERE = {4320: 4318}  # the gateway's port is the collector's too
SECONDS = {"s": 1, "m": 60}
TRAFFIC = DEPLOY / "traffic.py"
INBOX = DEPLOY / "inbox.py"
SERVICES = {"support-bot", "code-helper", "summariser"}
PROGRAMS = {  # of services: where it is on this machine, what gives it a port of its own, and the paths of its image
    "prometheus": ("prometheus", ["--web.listen-address=127.0.0.1:{9090}"], {"/etc/prometheus", "/prometheus"}),
    "alertmanager": (
        "prometheus-alertmanager",
        ["--web.listen-address=127.0.0.1:{9093}"],
        {"/etc/alertmanager", "/alertmanager"},
    ),
}


def test_the_services_are_those_that_were_meant() -> None:
    """Our own image bears the version of the distribution. One service builds it, and the others come after that."""
    assert set(services()) == set(LISTENS)
    assert {name for name, service in services().items() if "profiles" in service} == {"traffic"}
    image = f"tracejudge-worker:{project()['version']}"
    assert {name for name, service in services().items() if service["image"] == image} == OWN
    assert "build" in services()["worker"]
    for name in OWN:
        assert services()[name]["pull_policy"] == "never"
        assert name == "worker" or "worker" in services()[name]["depends_on"]


@each_case("name", services())
def test_a_service_has_few_rights_and_names_what_exists(name: str) -> None:
    """It writes to volumes alone, its ports are open to this machine alone, and it says how it is."""
    service, volumes = services()[name], read_yaml("compose.yaml")["volumes"]
    image, version = service["image"].partition("@")[0].split(":")
    assert re.fullmatch(r"v?\d+\.\d+\.\d+(-alpine|\.dev\d+)?", version)
    assert "." not in image.split("/")[0], "a registry"
    published = ports(service)
    assert set(published.values()) <= LISTENS[name]
    assert all(inner == ELSEWHERE.get(outer, outer) for outer, inner in published.items())
    assert all(mount.source.exists() and mount.is_read_only for mount in mounts(service))
    command = [*service.get("entrypoint", ()), *service.get("command", ())]
    targets = [mount.target for mount in mounts(service)]
    for path in re.findall(r"(?:^|=)(/(?:etc|opt)/\S+)", "\n".join(command), re.MULTILINE):
        assert any(path == target or path.startswith(f"{target}/") for target in targets), path
    assert {volume.split(":")[0] for volume in service.get("volumes", ()) if volume[0] != "."} <= set(volumes)
    assert set(service.get("depends_on", ())) <= set(services())
    check = service.get("healthcheck", {})
    if name == "worker":  # which has the image's own
        assert check == {}
    else:
        assert check["test"][0] == "CMD"
        assert {port for _, port in addresses(str(check["test"]))} <= LISTENS[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "ipc", "network_mode", "userns_mode"} & set(service)
    assert [mount.split(":")[0] for mount in service["tmpfs"]] == ["/tmp"]  # noqa: S108 - a tmpfs of the container
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert service.get("init", False) is (name in OWN)


def test_ports_are_the_codes_defaults_and_none_is_published_twice() -> None:
    published = [port for service in services().values() for port in ports(service)]
    assert len(published) == len(set(published))
    assert ports(services()["worker"]) == {Settings().metrics_port: Settings().metrics_port}
    assert list(ports(services()["redis"])) == [urlsplit(Settings().redis_url).port]


def test_redis_keeps_what_it_confirmed_and_is_not_healthy_while_it_answers_with_an_error() -> None:
    """It does so for as long as it reads its log, and whoever waits for its health would begin too soon."""
    command, (_, program, *arguments) = services()["redis"]["command"], services()["redis"]["healthcheck"]["test"]
    assert dict(zip(command[1::2], command[2::2], strict=True))["--save"] == ""
    with TunedRedis(find_servers()[0], *command[1:]) as server, Redis.from_url(server.url) as redis:
        kept = redis.config_get("append*", "maxmemory*")
        asked = [shutil.which(program) or "redis-cli", "-p", str(server.port), *arguments]
        ended = [subprocess.run(asked, capture_output=True, check=False).returncode]
        redis.config_set("requirepass", "other")
        ended += [subprocess.run(asked, capture_output=True, check=False).returncode]
    assert (kept["appendonly"], kept["appendfsync"], kept["maxmemory-policy"]) == ("yes", "everysec", "noeviction")
    assert int(kept["maxmemory"]) > Settings().max_stream_bytes * 2
    assert (ended[0], ended[1] > 0) == (0, True)


def test_the_worker_is_configured_by_what_it_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each variable is a setting, and the file is taken as it stands, without a key."""
    worker = services()["worker"]
    environment = {name: value for name, value in worker["environment"].items() if name.startswith("TRACEJUDGE_")}
    file, objectives = mounts(worker)
    # The worker finds its objectives beside its configuration.
    assert PurePosixPath(objectives.target) == PurePosixPath(file.target).with_name(FILE_NAME)
    assert first_raised(read_objectives(objectives.source))
    monkeypatch.chdir("/")
    settings = load(environment, config=str(file.source))
    assert settings.redis_url == "redis://redis:6379/0"
    assert OTLP_ENDPOINT.read(settings) == "http://collector:4318"
    assert {model.provider for model in settings.models.values()} == {"lexical"}
    judges = {judge for rule in settings.rules for judge in rule.judges}
    assert judges == {"groundedness", "relevance_to_query", "safety"}
    # The real model in the comment can be taken as it stands.
    text = (DEPLOY / "tracejudge.toml").read_text(encoding="utf-8")
    commented = "\n".join(re.findall(r"^# (\[models\.default\]\n(?:# .*\n)+)", text, re.MULTILINE))
    commented = commented.replace("\n# ", "\n")
    rest = text.replace('[models.default]\nprovider = "lexical"\n', "")
    file = tmp_path / "tracejudge.toml"
    file.write_text(f"{rest}\n{commented}", encoding="utf-8")
    model = load({"OPENAI_API_KEY": "sk-none"}, config=str(file)).models["default"]
    assert (model.judge_model, model.api_key_env) == ("gpt-6-luna", "OPENAI_API_KEY")
    assert model.api_key_env in worker["environment"]
    # It runs a verb of the command line, and has time to end.
    assert int(worker["stop_grace_period"][:-1]) * SECONDS[worker["stop_grace_period"][-1]] > Settings().grace_s + 10
    assert "entrypoint" not in worker
    (verb,) = worker.get("command", ["worker"])
    assert verb in commands()


FILES = ("compose.yaml", "collector.yaml", "prometheus.yaml", "tracejudge.toml", "alertmanager/alertmanager.yml")


@each_case("name", (*FILES, "grafana/provisioning/datasources/tracejudge.yaml"))
def test_addresses_are_those_of_services(name: str) -> None:
    lines = (DEPLOY / name).read_text(encoding="utf-8").splitlines()
    for host, port in addresses("\n".join(line.split("#")[0] for line in lines)):
        listens = set().union(*LISTENS.values()) if host in ("localhost", "127.0.0.1") else LISTENS[host]
        assert port in listens, f"{host}:{port}"


def test_the_collector_hands_on_what_it_receives() -> None:
    collector = read_yaml("collector.yaml")
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(collector[kind])
        assert pipeline["processors"][0] == "memory_limiter"
    assert set(collector["service"]["pipelines"]) == {"traces", "logs"}  # what the worker sends
    assert collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"] == "0.0.0.0:4318"
    host, port = collector["exporters"]["otlp/jaeger"]["endpoint"].split(":")
    assert int(port) in LISTENS[host]


def test_prometheus_scrapes_the_worker_as_the_example_does() -> None:
    """The two configurations differ in where things are and in nothing else."""
    here, example = read_yaml("prometheus.yaml"), read_yaml("prometheus/prometheus.yml")
    assert (here["global"], here["rule_files"]) == (example["global"], example["rule_files"])
    assert [job["job_name"] for job in here["scrape_configs"]] == [job["job_name"] for job in example["scrape_configs"]]
    (exemplars,) = here["scrape_configs"][0]["dns_sd_configs"]
    assert (exemplars["names"], exemplars["port"]) == (["worker"], Settings().metrics_port)
    assert here["alerting"]["alertmanagers"][0]["static_configs"] == [{"targets": ["alertmanager:9093"]}]
    assert "--enable-feature=exemplar-storage" in services()["prometheus"]["command"]


def test_promtool_takes_what_is_mounted(promtool: str, tmp_path: Path) -> None:
    for mount in mounts(services()["prometheus"]):
        place = tmp_path / mount.target.removeprefix("/etc/prometheus/")
        place.symlink_to(mount.source)
    file = tmp_path / "prometheus.yaml"
    checked = subprocess.run([promtool, "check", "config", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(list((DEPLOY / 'prometheus' / 'rules').glob('*.yaml')))} rule files found" in checked.stdout


def test_grafana_finds_its_files_and_the_dashboards_their_data() -> None:
    targets = {mount.target: mount.source for mount in mounts(services()["grafana"])}
    provisioning = {Path(target).name: source for target, source in targets.items() if "provisioning" in target}
    assert {str(Path(target).parent) for target in targets if "provisioning" in target} == {"/etc/grafana/provisioning"}
    files = {kind: [file.name for file in folder.iterdir()] for kind, folder in provisioning.items()}
    assert files == {"datasources": ["tracejudge.yaml"], "dashboards": ["tracejudge.yaml"]}
    (provider,) = read_yaml("grafana/provisioning/dashboards/tracejudge.yaml")["providers"]
    assert (provider["type"], provider["allowUiUpdates"]) == ("file", False)
    assert provider["options"]["path"] in targets
    home = Path(services()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (targets[str(home.parent)] / home.name).exists()
    sources = read_yaml("grafana/provisioning/datasources/tracejudge.yaml")["datasources"]
    by_uid = {source["uid"]: source for source in sources}
    assert {uid for uid, source in by_uid.items() if source.get("isDefault")} == {"prometheus"}
    data = by_uid["prometheus"]["jsonData"]
    assert data["alertmanagerUid"] in by_uid
    explore, jaeger = data["exemplarTraceIdDestinations"]
    assert explore == {"name": "trace_id", "datasourceUid": "traces"}
    assert by_uid["traces"]["type"] == "jaeger"
    (port,) = ports(services()["jaeger"])
    assert (jaeger["name"], jaeger["url"]) == ("trace_id", f"http://localhost:{port}/trace/$${{__value.raw}}")


def test_nothing_in_it_is_a_secret() -> None:
    """Keys come from the shell that says `up`; Grafana has no account, board and gateway a token that is no secret."""
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    assert services()["worker"]["environment"]["OPENAI_API_KEY"] is None
    default = "only-on-this-machine"
    for name in ("BOARD_TOKEN", "GATEWAY_TOKEN"):
        assert f"{name}: ${{{name}:-{default}}}" in text
        text = text.replace(f"{name}: ${{{name}:-{default}}}", "").replace(f'"token_env": "{name}"', "")
    text = text.replace(f"token {default}", "")
    assert not re.search(r"(?i)password|passwd|secret_key|token:|token=", text)
    assert services()["grafana"]["environment"]["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_compose_itself_takes_the_file() -> None:
    """Only where the plugin is: it needs no engine for this."""
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("no docker compose")
    command = [docker, "compose", "-f", str(DEPLOY / "compose.yaml"), "--profile", "demo", "config", "--quiet"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


# --- programs, with their own commands, variables, files and health checks ---


def placed(words: Sequence[str], numbers: Mapping[int, int], folders: Mapping[str, Path]) -> list[str]:
    """Replace the ports and the folders of a container by ours."""
    made = []
    for word in words:
        for inner, outer in numbers.items():
            word = re.sub(rf"\{{{inner}\}}|(?<=:){inner}\b|^{inner}$", str(outer), word)  # noqa: PLW2901 - step by step
        for path, folder in folders.items():
            word = re.sub(rf"(?<![\w.]){path}(?=/|$)", str(folder), word)  # noqa: PLW2901
        made.append(word)
    return made


def is_healthy(
    service: Mapping[str, Any], numbers: Mapping[int, int], folders: Mapping[str, Path] | None = None
) -> bool:
    """Run its health check, which compose runs in the container."""
    words = placed(service["healthcheck"]["test"][1:], numbers, folders or {})
    words = [sys.executable, *words[1:]] if words[0] == "python" else words
    return subprocess.run(words, capture_output=True, check=False, timeout=30).returncode == 0


@pytest.mark.slow("starts Prometheus and Alertmanager")
@each_case("name", PROGRAMS)
def test_a_service_starts_by_its_command_and_is_healthy(name: str, tmp_path: Path) -> None:
    service = services()[name]
    program, own_port, paths = PROGRAMS[name]
    numbers = {int(re.findall(r"\{(\d+)\}", "".join(own_port))[0]): free_port()}
    folders = {path: tmp_path / path.strip("/").replace("/", "-") for path in paths}
    for folder in folders.values():
        folder.mkdir()
    for mount in mounts(service):
        (target,) = placed([mount.target], {}, folders)
        shutil.copytree(mount.source, target, dirs_exist_ok=True) if mount.source.is_dir() else shutil.copy(
            mount.source, target
        )
    command = [word for word in service["command"] if word != program]
    assert not is_healthy(service, numbers)
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [shutil.which(program) or program, *placed([*command, *own_port], numbers, folders)],
            stdout=log,
            stderr=log,
            cwd=tmp_path,
        )
    try:
        wait_until(lambda: is_healthy(service, numbers), what=f"{name} to be healthy")
    finally:
        process.terminate()
        assert process.wait(30) == 0, (tmp_path / "log").read_text()


@pytest.mark.slow("starts a worker, a gateway and a board")
@pytest.mark.parametrize("name", ["gateway", "board"])
def test_our_own_services_start_by_their_commands_and_are_healthy(
    name: str, redis_url: str, prefix: str, tmp_path: Path
) -> None:
    service = services()[name]
    token = f"{name.upper()}_TOKEN"
    numbers = {9811: free_port()} if name == "board" else {9809: free_port()}
    port = free_port()
    for mount in mounts(service):
        shutil.copy(mount.source, tmp_path / Path(mount.target).name)
    environment = {key: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for key, value in service["environment"].items()}
    setting = f"TRACEJUDGE_{name.upper()}"
    own = json.loads(environment[setting]) | {"port": port, "metrics_port": next(iter(numbers.values()))}
    environment |= {setting: json.dumps(own), "TRACEJUDGE_REDIS_URL": redis_url, "TRACEJUDGE_PREFIX": prefix}
    command = placed(service["command"], numbers, {})
    with Program("-m", "worker.cli", *command, folder=tmp_path, env=environment) as program:
        wait_until(lambda: is_healthy(service, numbers), what=f"{name} to be healthy")
        path = {"gateway": "/v1/tracejudge", "board": "/"}[name]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
            for header, allowed in ({}, False), ({"Authorization": f"Bearer {environment[token]}"}, True):
                reply = (
                    client.post(path, json=[], headers=header)
                    if name == "gateway"
                    else client.get(path, headers=header)
                )
                assert (reply.status_code != 401) is allowed, reply.text
        assert program.terminate() == 0


def variables(redis_url: str, prefix: str, otlp: OtlpReceiver) -> dict[str, str]:
    """Return the variables of compose.yaml, with the addresses of the test."""
    environment = services()["traffic"]["environment"]
    ours = {"TRACEJUDGE_REDIS_URL": redis_url, "OTEL_EXPORTER_OTLP_ENDPOINT": otlp.root_url}
    assert set(ours) < set(environment)
    return environment | ours | {"TRACEJUDGE_PREFIX": prefix}


def published(redis: Redis, prefix: str) -> list[dict[str, object]]:
    entries = redis.xrange(f"{prefix}:traces")
    return [json.loads(fields[b"t"]) for _, fields in entries if b"t" in fields]


@pytest.mark.slow("several real programs")
def test_traffic_goes_on_round_after_round_and_each_trace_is_a_span(
    redis: Redis, redis_url: str, prefix: str, otlp: OtlpReceiver, tmp_path: Path
) -> None:
    environment = variables(redis_url, prefix, otlp)
    with Program(
        TRAFFIC, "--round", "4", "--rate", "5", folder=tmp_path, env=environment | {"TMPDIR": str(tmp_path)}
    ) as traffic:
        wait_until(lambda: len(published(redis, prefix)) > 4 * 5 * len(SERVICES) * 1.2, what="a second round")
        traffic.signal(signal.SIGTERM)
        assert traffic.wait() == 0
    alive = ["python", "-c", services()["traffic"]["healthcheck"]["test"][-1].replace("/tmp/", f"{tmp_path}/")]  # noqa: S108
    assert subprocess.run([sys.executable, *alive[1:]], check=False).returncode == 0
    traces = published(redis, prefix)
    assert {trace["service"] for trace in traces} == SERVICES
    assert {trace["environment"] for trace in traces} == {"demo"}
    spans = {(span.trace_id, span.span_id): span for span in otlp.spans}
    assert {(trace["trace_id"], trace["span_id"]) for trace in traces} == set(spans)
    assert {span.resource["service.name"] for span in spans.values()} == SERVICES
    assert all(0 < span.end_ns - span.start_ns < 5e9 for span in spans.values())


def test_traffic_goes_on_without_a_collector(
    redis: Redis, redis_url: str, prefix: str, otlp: OtlpReceiver, tmp_path: Path
) -> None:
    """The arguments of compose are taken as well."""
    otlp.behaviour = failing(503)
    environment = variables(redis_url, prefix, otlp)
    with Program(TRAFFIC, *services()["traffic"]["command"], folder=tmp_path, env=environment) as traffic:
        traffic.wait_for("rounds of 7200 s, 1 traces a second of each service")
        traffic.wait_for("no spans sent: HTTPStatusError")
        already = len(published(redis, prefix))
        wait_until(lambda: len(published(redis, prefix)) > already, what="more traffic")


def test_the_inbox_prints_what_a_person_would_read_and_messages_for_programs_on_a_line(tmp_path: Path) -> None:
    port = free_port()
    page = {"attachments": [{"title": "[PAGE] it fell", "text": "61% passed.", "title_link": "http://localhost:3000"}]}
    alerts = {"alerts": [{"status": "firing", "labels": {"alertname": "TraceJudgeNoVerdicts"}}]}
    url = f"http://127.0.0.1:{port}"
    with Program(INBOX, str(port), folder=tmp_path) as inbox, httpx.Client(base_url=url, timeout=60) as client:
        inbox.wait_for("inbox on port")
        assert is_healthy(services()["inbox"], {8080: port})
        assert client.get("/").text == "ok"
        # Anything but `ok` is a failure to Alertmanager.
        posts = [client.post("/page", json=page), client.post("/webhook", json=alerts)]
        assert [(answer.status_code, answer.text) for answer in posts] == [(200, "ok")] * 2
        assert client.post("/webhook", content=b"no JSON").status_code == 400
        assert client.post("/webhook", json=[1]).status_code == 400
        inbox.wait_for("^== page ==\n\\[PAGE\\] it fell\n61% passed.\nhttp://localhost:3000$")
        inbox.wait_for("^-- webhook: TraceJudgeNoVerdicts firing$")
