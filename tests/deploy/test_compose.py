"""compose.yaml and the files it mounts, against the code and against each other."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
from compose_file import DEPLOY, addresses, mounts, ports, read_yaml, services
from redis import Redis
from support.cases import each_case
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


def named() -> Any:
    return pytest.mark.parametrize("name", services())


def test_the_services_are_those_that_were_meant() -> None:
    assert set(services()) == set(LISTENS)
    assert {name for name, service in services().items() if "profiles" in service} == {"traffic"}


@named()
def test_images_are_pinned_and_name_no_registry(name: str) -> None:
    image, version = services()[name]["image"].partition("@")[0].split(":")
    assert re.fullmatch(r"v?\d+\.\d+\.\d+(-alpine|\.dev\d+)?", version)
    assert "." not in image.split("/")[0]


def test_our_own_image_bears_the_version_of_the_distribution() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = {
        name for name, service in services().items() if service["image"] == f"tracejudge-worker:{project['version']}"
    }
    assert own == OWN


@named()
def test_ports_are_open_to_this_machine_alone_and_lead_to_where_the_service_listens(name: str) -> None:
    published = ports(services()[name])
    assert set(published.values()) <= LISTENS[name]
    assert all(inner == ELSEWHERE.get(outer, outer) for outer, inner in published.items())


def test_no_port_of_this_machine_is_published_twice() -> None:
    published = [port for service in services().values() for port in ports(service)]
    assert len(published) == len(set(published))


def test_ports_are_the_codes_defaults() -> None:
    assert ports(services()["worker"]) == {Settings().metrics_port: Settings().metrics_port}
    assert list(ports(services()["redis"])) == [urlsplit(Settings().redis_url).port]


@named()
def test_what_is_mounted_exists_and_is_read_only(name: str) -> None:
    for mount in mounts(services()[name]):
        assert mount.source.exists(), mount
        assert mount.is_read_only, mount


@named()
def test_files_that_a_command_names_are_mounted(name: str) -> None:
    service = services()[name]
    command = [*service.get("entrypoint", ()), *service.get("command", ())]
    targets = {mount.target for mount in mounts(service)}
    for path in re.findall(r"(?:^|=)(/(?:etc|opt)/\S+)", "\n".join(command), re.MULTILINE):
        assert any(path == target or path.startswith(f"{target}/") for target in targets), path


@named()
def test_volumes_are_declared(name: str) -> None:
    used = {volume.split(":")[0] for volume in services()[name].get("volumes", ()) if not volume.startswith(".")}
    assert used <= set(read_yaml("compose.yaml")["volumes"])


@named()
def test_services_wait_for_services_that_exist(name: str) -> None:
    assert set(services()[name].get("depends_on", ())) <= set(services())


@named()
def test_every_service_says_how_it_is(name: str) -> None:
    check = services()[name].get("healthcheck", {})
    if name == "worker":  # which has the image's own
        assert check == {}
    else:
        assert check["test"][0] == "CMD"
        assert {port for _, port in addresses(str(check["test"]))} <= LISTENS[name]


@named()
def test_containers_have_no_rights_limited_resources_and_write_to_volumes_alone(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "ipc", "network_mode", "userns_mode"} & set(service)
    assert [mount.split(":")[0] for mount in service["tmpfs"]] == ["/tmp"]  # noqa: S108 - a tmpfs of the container
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert service.get("init", False) is (name in OWN)


def redis_of_compose() -> TunedRedis:
    """Make a server of this machine with the options of compose."""
    return TunedRedis(find_servers()[0], *services()["redis"]["command"][1:])


def test_redis_keeps_what_it_confirmed_and_evicts_nothing() -> None:
    command = services()["redis"]["command"]
    assert dict(zip(command[1::2], command[2::2], strict=True))["--save"] == ""
    with redis_of_compose() as server, Redis.from_url(server.url, decode_responses=True) as redis:
        kept = redis.config_get("append*", "maxmemory*")
    assert (kept["appendonly"], kept["appendfsync"], kept["maxmemory-policy"]) == ("yes", "everysec", "noeviction")
    assert int(kept["maxmemory"]) > Settings().max_stream_bytes * 2


@pytest.mark.parametrize(("password", "is_healthy"), [("", True), ("other", False)])
def test_a_redis_that_answers_with_an_error_is_not_healthy(password: str, is_healthy: bool) -> None:  # noqa: FBT001 - a column
    """It does so for as long as it reads its log, and whoever waits for its health would begin too soon."""
    kind, program, *arguments = services()["redis"]["healthcheck"]["test"]
    if shutil.which(program) is None:
        pytest.skip(f"no {program}")
    with redis_of_compose() as server:
        with Redis.from_url(server.url) as redis:
            redis.config_set("requirepass", password)
        asked = subprocess.run([program, "-p", str(server.port), *arguments], capture_output=True, check=False)
    assert (kind, asked.returncode == 0) == ("CMD", is_healthy)


@each_case("name", sorted(OWN))
def test_no_registry_is_asked_for_our_own_image(name: str) -> None:
    """One service builds it, and the others come after that one."""
    assert services()[name]["pull_policy"] == "never"
    assert "build" in services()[name] or "worker" in services()[name]["depends_on"]
    assert "build" in services()["worker"]


def test_the_worker_is_configured_by_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert {judge for rule in settings.rules for judge in rule.judges} == {
        "groundedness",
        "relevance_to_query",
        "safety",
    }


def test_the_real_model_in_the_comment_can_be_taken_as_it_stands(tmp_path: Path) -> None:
    text = (DEPLOY / "tracejudge.toml").read_text(encoding="utf-8")
    commented = "\n".join(re.findall(r"^# (\[models\.default\]\n(?:# .*\n)+)", text, re.MULTILINE)).replace(
        "\n# ", "\n"
    )
    rest = text.replace('[models.default]\nprovider = "lexical"\n', "")
    file = tmp_path / "tracejudge.toml"
    file.write_text(f"{rest}\n{commented}", encoding="utf-8")
    model = load({"OPENAI_API_KEY": "sk-none"}, config=str(file)).models["default"]
    assert (model.judge_model, model.api_key_env) == ("gpt-6-luna", "OPENAI_API_KEY")
    assert model.api_key_env in services()["worker"]["environment"]


def test_the_worker_has_time_to_end() -> None:
    grace = services()["worker"]["stop_grace_period"]
    assert int(grace[:-1]) * SECONDS[grace[-1]] > Settings().grace_s + 10


def test_the_worker_runs_a_verb_of_the_command_line() -> None:
    assert "entrypoint" not in services()["worker"]
    (verb,) = services()["worker"].get("command", ["worker"])
    assert verb in commands()


@each_case(
    "name",
    [
        "compose.yaml",
        "collector.yaml",
        "prometheus.yaml",
        "tracejudge.toml",
        "alertmanager/alertmanager.yml",
        "grafana/provisioning/datasources/tracejudge.yaml",
    ],
)
def test_addresses_are_those_of_services(name: str) -> None:
    lines = (DEPLOY / name).read_text(encoding="utf-8").splitlines()
    for host, port in addresses("\n".join(line.split("#")[0] for line in lines)):
        if host in ("localhost", "127.0.0.1"):
            assert port in {port for service in LISTENS.values() for port in service}
        else:
            assert port in LISTENS[host], f"{host}:{port}"


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
    assert {kind: [file.name for file in folder.iterdir()] for kind, folder in provisioning.items()} == {
        "datasources": ["tracejudge.yaml"],
        "dashboards": ["tracejudge.yaml"],
    }
    provider = read_yaml("grafana/provisioning/dashboards/tracejudge.yaml")["providers"][0]
    assert provider["options"]["path"] in targets
    home = Path(services()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (targets[str(home.parent)] / home.name).exists()
    sources = read_yaml("grafana/provisioning/datasources/tracejudge.yaml")["datasources"]
    (prometheus,) = (source for source in sources if source["type"] == "prometheus")
    linked = {to.get("datasourceUid") or to["url"] for to in prometheus["jsonData"]["exemplarTraceIdDestinations"]}
    (traces,) = (source["uid"] for source in sources if source["type"] == "jaeger")
    (port,) = ports(services()["jaeger"])
    assert linked == {traces, f"http://localhost:{port}/trace/$${{__value.raw}}"}


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
