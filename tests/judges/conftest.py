"""What the judges' tests run under: no tool overruns because a machine stands still for seconds."""

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_client import Certificate
from support.processes import PATIENCE_S

from judges.agent import loop
from judges.agent import patterns as budget


@pytest.fixture(autouse=True)
def patience_with_tools() -> Iterator[pytest.MonkeyPatch]:
    """Lengthen what a tool and a search may take on the wall; ``undo`` brings the product's own limits back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_MAX_TOOL_S", PATIENCE_S)
        patch.setattr(budget, "_WALL_S", PATIENCE_S)
        yield patch


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl makes the certificate")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    subject = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    made = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", path, "-out", f"{path}.crt")
    subprocess.run([openssl, *made, *subject], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(path)
    return Certificate(path, tls)
