"""The program beside MinIO, `user.py`: it makes the orchestrator a user, who is not root. All of
them speak TLS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from minio import MinioAdmin
from minio.credentials import StaticProvider
from minio.error import MinioAdminException
from urllib3 import PoolManager

from podracer_client.secrets import create_secrets
from podracer_core.config import Secret
from podracer_core.errors import PermissionRefused, PreconditionFailed
from podracer_platform.storage import S3Settings, open_store
from support.processes import ROOT
from support.s3_server import ACCESS_KEY, PROGRAMS, SECRET_KEY, S3Server

PROGRAM = ROOT / "deploy" / "k8s" / "components" / "minio" / "user.py"

pytestmark = pytest.mark.skipif(PROGRAMS["minio"].path is None, reason="minio is not on PATH")


@pytest.fixture
def minio(tmp_path: Path) -> Iterator[S3Server]:
    create_secrets(tmp_path)
    create_secrets(tmp_path / "other")
    server = S3Server(tmp_path / "buckets", program="minio", tls=tmp_path / "tls" / "store")
    server.start()
    yield server
    server.stop()


def test_the_user_has_one_bucket_and_can_give_keys_of_sessions(minio, tmp_path):
    ours, others = tmp_path / "tls" / "ca" / "ca.pem", tmp_path / "other" / "tls" / "ca" / "ca.pem"
    store = tmp_path / "store"
    (store / "root_user").write_text(ACCESS_KEY)
    (store / "root_password").write_text(SECRET_KEY)
    files = {"MINIO_USER": "access_key", "MINIO_PASSWORD": "secret_key"}
    files |= {"MINIO_ROOT_USER": "root_user", "MINIO_ROOT_PASSWORD": "root_password"}
    variables = {f"{name}_FILE": str(store / file) for name, file in files.items()}
    address = minio.endpoint.removeprefix("https://")
    environment = os.environ | variables | {"MINIO_ADDRESS": address}
    command = [sys.executable, "-I", PROGRAM, "podracer", "--once"]
    program = subprocess.Popen(
        command, env=environment | {"MINIO_CA_FILE": str(others)}, stderr=subprocess.PIPE
    )
    assert program.stderr is not None
    assert b"CERTIFICATE_VERIFY_FAILED" in program.stderr.readline()
    program.send_signal(signal.SIGTERM)
    assert program.wait(60) == 0
    for _ in range(2):
        subprocess.run(
            command, env=environment | {"MINIO_CA_FILE": str(ours)}, check=True, timeout=60
        )
    user, password = ((store / name).read_text().strip() for name in ("access_key", "secret_key"))
    settings = S3Settings(minio.endpoint, Secret(user), Secret(password), ca_file=ours, attempts=1)
    opened = open_store("s3://podracer", settings)
    opened.put("projects/a/jobs/u/x", b"x")
    assert opened.get("projects/a/jobs/u/x") == b"x"
    assert opened.session_keys("projects/a/jobs/u/*", "", 3600.0) is not None
    url = opened.signed_url("GET", "projects/a/jobs/u/x", 60.0)
    assert PoolManager(ca_certs=str(ours)).request("GET", url).data == b"x"
    # the orchestrator's, and a learner's
    for keys in ({}, {"access_key": None, "secret_key": None}):
        with pytest.raises(PreconditionFailed, match="PODRACER_S3_CA_FILE"):
            open_store("s3://podracer", replace(settings, ca_file=others, **keys), leased=True)
    with pytest.raises(PermissionRefused):
        open_store("s3://another", settings)
    http = PoolManager(ca_certs=str(ours), retries=False)
    admin = MinioAdmin(
        endpoint=address, credentials=StaticProvider(user, password), http_client=http
    )
    with pytest.raises(MinioAdminException):
        admin.user_list()
