"""The program beside MinIO, `user.py`: it makes the orchestrator a user, who is not root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from minio import MinioAdmin
from minio.credentials import StaticProvider
from minio.error import MinioAdminException

from podracer_client.secrets.deployment import create_secrets
from podracer_core.config import Secret
from podracer_core.errors import PermissionRefused
from podracer_core.storage import open_store
from podracer_core.storage.s3 import S3Settings
from support.processes import ROOT
from support.s3_server import ACCESS_KEY, PROGRAMS, SECRET_KEY, S3Server

PROGRAM = ROOT / "deploy" / "k8s" / "components" / "minio" / "user.py"

pytestmark = pytest.mark.skipif(PROGRAMS["minio"].path is None, reason="minio is not on PATH")


@pytest.fixture
def minio(tmp_path: Path) -> Iterator[S3Server]:
    server = S3Server(tmp_path / "buckets", program="minio")
    server.start()
    yield server
    server.stop()


def test_the_user_has_one_bucket_and_can_give_keys_of_sessions(minio: S3Server, tmp_path: Path) -> None:
    create_secrets(tmp_path)
    store = tmp_path / "store"
    (store / "root_user").write_text(ACCESS_KEY)
    (store / "root_password").write_text(SECRET_KEY)
    files = {"MINIO_USER": "access_key", "MINIO_PASSWORD": "secret_key"}
    files |= {"MINIO_ROOT_USER": "root_user", "MINIO_ROOT_PASSWORD": "root_password"}
    variables = {f"{name}_FILE": str(store / file) for name, file in files.items()}
    address = minio.endpoint.removeprefix("http://")
    environment = os.environ | variables | {"MINIO_ADDRESS": address}
    for _ in range(2):
        subprocess.run([sys.executable, "-I", PROGRAM, "podracer", "--once"], env=environment, check=True, timeout=60)
    user, password = ((store / name).read_text().strip() for name in ("access_key", "secret_key"))
    settings = S3Settings(minio.endpoint, Secret(user), Secret(password), attempts=1)
    opened = open_store("s3://podracer", settings)
    opened.put("projects/a/jobs/u/x", b"x")
    assert opened.get("projects/a/jobs/u/x") == b"x"
    assert opened.session_keys("projects/a/jobs/u/*", "", 3600.0) is not None
    with pytest.raises(PermissionRefused):
        open_store("s3://another", settings)
    admin = MinioAdmin(endpoint=address, credentials=StaticProvider(user, password), secure=False)
    with pytest.raises(MinioAdminException):
        admin.user_list()
