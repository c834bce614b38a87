"""Keeps a user of MinIO's that reaches one bucket: the orchestrator is not root. `user.py BUCKET
[--once]`

MINIO_ADDRESS, and files: MINIO_CA_FILE has the authority of its certificate, MINIO_ROOT_USER_FILE
and MINIO_ROOT_PASSWORD_FILE have the keys of its root, MINIO_USER_FILE and MINIO_PASSWORD_FILE
those of the user. MINIO_MADE_FILE is written once the user is there."""

import os
import signal
import sys
import time
from pathlib import Path

from minio import MinioAdmin
from minio.credentials import StaticProvider
from minio.error import MinioException
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError

EVERY_S, AGAIN_S, TIMEOUT_S = 60.0, 1.0, 30.0


def read(variable: str) -> str:
    return Path(os.environ[variable]).read_text().strip()


def ensure(bucket: str) -> None:
    root = StaticProvider(read("MINIO_ROOT_USER_FILE"), read("MINIO_ROOT_PASSWORD_FILE"))
    address, user = os.environ["MINIO_ADDRESS"], read("MINIO_USER_FILE")
    http = PoolManager(timeout=TIMEOUT_S, retries=False, ca_certs=os.environ["MINIO_CA_FILE"])
    admin = MinioAdmin(endpoint=address, credentials=root, http_client=http)
    resources = [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]
    allowed = {"Effect": "Allow", "Action": ["s3:*"], "Resource": resources}
    admin.policy_add("podracer", policy={"Version": "2012-10-17", "Statement": [allowed]})
    admin.user_add(user, read("MINIO_PASSWORD_FILE"))
    admin.policy_set("podracer", user=user)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    bucket, once = sys.argv[1], "--once" in sys.argv
    while True:
        try:
            ensure(bucket)
        except (MinioException, HTTPError, OSError) as error:
            sys.stderr.write(f"cannot make the user, retrying: {error}\n")
            time.sleep(AGAIN_S)
            continue
        if once:
            return
        Path(os.environ["MINIO_MADE_FILE"]).touch()
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
