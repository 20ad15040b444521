"""Files for TLS that settings or variables name: opened at the start, and named with their path where they fail."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from support.cases import each_case

from judges.core.model import ModelSettings
from judges.models.registry import ModelSettingsError, build
from worker.base.delivery.receiver_client import Destination, ReceiverClient
from worker.base.doctor.finding import cause_of
from worker.base.doctor.http_endpoints import endpoint
from worker.base.doctor.lint import lint
from worker.core.config.loading import load
from worker.core.config.serving import Tls
from worker.core.config.settings import SettingsError

MODEL = ModelSettings(base_url="https://127.0.0.1:1/v1", model="m")


class Pair(NamedTuple):
    cert: str
    key: str


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "c.pem"), str(folder / "k.pem")
    command = (openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-keyout", key, "-out", cert)
    subprocess.run(command, check=True, capture_output=True)
    return Pair(cert, key)


def by_redis(option: str) -> Callable[[str], object]:
    return lambda path: load({}, None, {"redis_url": f"rediss://:secret@host/0?{option}={path}"}, needs_rules=False)


def by_broker(option: str, scheme: str = "amqps") -> Callable[[str], object]:
    return lambda path: load(
        {"TRACEJUDGE_BROKER_URL": f"{scheme}://u:secret@host/0?{option}={path}"}, None, needs_rules=False
    )


def by_variable(name: str, use: Callable[[], object]) -> Callable[[str], object]:
    def used(path: str) -> object:
        os.environ[name] = path  # restored by the fixture
        return use()

    return used


def receiver() -> None:
    ReceiverClient(Destination("https://127.0.0.1:1", "receivers.x", "a receiver")).close()


USES: dict[str, tuple[str, Callable[[str], object]]] = {
    **{option: (option, by_redis(option)) for option in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")},
    "a broker's": ("ssl_ca_certs", by_broker("ssl_ca_certs")),
    "a broker's in short": ("keyfile", by_broker("keyfile")),
    "a Redis broker's": ("ssl_ca_certs", by_broker("ssl_ca_certs", "rediss")),
    "a scheme in upper case": (
        "ssl_ca_certs",
        lambda path: load({}, None, {"redis_url": f"REDISS://h?ssl_ca_certs={path}"}),
    ),
    "Redis without options": (
        "SSL_CERT_FILE",
        lambda path: load({"SSL_CERT_FILE": path}, None, {"redis_url": "rediss://host"}, needs_rules=False),
    ),
    "a model": ("base_url: the variable SSL_CERT_FILE", by_variable("SSL_CERT_FILE", lambda: build(MODEL, {}))),
    "a receiver": ("SSL_CERT_FILE", by_variable("SSL_CERT_FILE", receiver)),
}


@each_case(("name", "use"), USES.values(), ids=USES)
def test_a_file_that_cannot_be_used_stops_the_start(
    name: str, use: Callable[[str], object], tmp_path: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Restores what a case sets.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for file, content in {"empty": "", "text": "no PEM", "cut": Path(pair.cert).read_text()[:400]}.items():
        (tmp_path / file).write_text(content)
    for path in ("/nowhere/ca.pem", *(str(tmp_path / file) for file in ("empty", "text", "cut")), str(tmp_path)):
        with pytest.raises((SettingsError, ModelSettingsError)) as caught:
            use(path)
        message = str(caught.value)
        assert f"{name}: the file {path} cannot be used (" in message
        assert "secret" not in message
    use(pair.key if "key" in name.lower() else pair.cert)


def test_files_that_nothing_uses_are_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    build(ModelSettings(base_url="http://127.0.0.1:1/v1", model="m"), {})
    load({"SSL_CERT_FILE": "/nowhere/ca.pem"}, None, needs_rules=False)
    assert not [finding for finding in lint({"SSL_CERT_FILE": "/nowhere/ca.pem"}) if finding.severity == "error"]


LINTED = """\
redis_url = "REDISS+cluster://:secret@host?ssl_ca_certs=/nowhere/a"
broker_url = "amqps://host?ssl_ca_certs=/nowhere/b"
metrics_tls_cert = "/nowhere/c"
metrics_tls_key = "/nowhere/d"
[models.default]
base_url = "https://host/v1"
model = "m"
[receivers.x]
kind = "webhook"
url = "https://host"
ca_file = "/nowhere/e"
client_cert = "/nowhere/f"
client_key = "/nowhere/g"
"""


def test_lint_reports_each_file_that_stops_a_start(tmp_path: Path) -> None:
    path = tmp_path / "linted.toml"
    path.write_text(LINTED, encoding="utf-8")
    variables = {"SSL_CERT_FILE": "/nowhere/h"}
    findings = lint(variables, str(path))
    assert {(finding.key or finding.place, finding.line) for finding in findings} == {
        ("redis_url", 1), ("broker_url", 2), ("metrics_tls_cert", 3), ("metrics_tls_key", 4),
        ("receivers.x.ca_file", 11), ("receivers.x.client_cert", 12), ("receivers.x.client_key", 13),
        ("SSL_CERT_FILE", None),
    }  # fmt: skip
    assert {(finding.code, finding.fix) for finding in findings} == {("TJ001", "name a readable PEM file")}
    assert all("cannot be used (No such file" in finding.what and "secret" not in finding.what for finding in findings)
    with pytest.raises(
        SettingsError, match=r": redis_url: rediss\+cluster://host: ssl_ca_certs: the file /nowhere/a cannot be"
    ):
        load(variables, str(path))


def test_the_doctor_names_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    assert "/nowhere/ca.pem" in endpoint("m", MODEL, {})[0].what


def test_certificates_of_our_own_servers_are_named(pair: Pair) -> None:
    assert Tls("gateway.tls_", pair.cert, pair.key).context() is not None
    for cert, key in (("/nowhere/c.pem", pair.key), (pair.cert, "/nowhere/k.pem"), (pair.cert, pair.cert)):
        with pytest.raises(SettingsError, match=r"^gateway.tls_cert: certificate ") as caught:
            Tls("gateway.tls_", cert, key).context()
        assert [path in str(caught.value) for path in (cert, key)] == [True, True]


def test_a_file_that_does_not_exist_is_not_always_a_socket() -> None:
    missing = FileNotFoundError(2, "No such file or directory")
    assert cause_of(missing, "unix:///run/redis.sock", "Redis").what == "there is no socket at unix:///run/redis.sock"
    assert cause_of(missing, "rediss://host", "Redis").what == "there is no certificate file for rediss://host"
