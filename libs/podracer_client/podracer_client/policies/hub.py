"""A policy in a repository of Hugging Face: `hf://OWNER/REPO[@REVISION]`.

Only its manifest and the safetensors files that it names are downloaded, at one commit, within
limits, and checked against the manifest's digests. No pickle is read, and environments that would
run the repository's code are refused."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from podracer_client.files import write_whole
from podracer_client.outside import require, within
from podracer_client.policies.environment import trained_environment
from podracer_core.errors import DataCorrupted, InvalidInput, NotFound
from podracer_core.storage import FILE_NAME, Manifest, ManifestFile

PREFIX = "hf://"
ACTING = ("actor.safetensors", "normalizer.safetensors")
"""The files of a checkpoint that acting needs."""

_NAME = re.compile(r"hf://([\w.-]{1,96}/[\w.-]{1,96})(?:@([\w./-]{1,100}))?")
_MAX_BYTES = {FILE_NAME: 16 << 20}
_MAX_FILE_BYTES = 2 << 30
_ASK_S, _FETCH_S = 60.0, 900.0


def parse_hub_name(text: str) -> tuple[str, str | None]:
    """`OWNER/REPO`, and the revision if one is named. Raises InvalidInput."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{text[:200]!r}: expected hf://OWNER/REPO or hf://OWNER/REPO@REVISION")
    return match[1], match[2]


def hub_client() -> Any:
    """A client with the user's own token, as `hf auth login` or HF_TOKEN has it, of the hub that
    HF_ENDPOINT names."""
    hub = require("huggingface_hub", "huggingface")
    # the command prints no control characters
    require("huggingface_hub.utils", "huggingface").disable_progress_bars()
    return hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))


@contextmanager
def fetched_policy(text: str) -> Iterator[Path]:
    """The folder of the policy of that name; removed at the end.

    Raises NotFound, InvalidInput if it is not a Podracer policy or too large, DataCorrupted for an
    altered file."""
    repository, revision = parse_hub_name(text)
    hub = hub_client()
    found = within(
        _ASK_S, text, lambda: hub.model_info(repository, revision=revision, files_metadata=True)
    )
    sizes = {each.rfilename: each.size for each in found.siblings or ()}
    with tempfile.TemporaryDirectory(prefix="podracer-policy-") as folder:

        def fetch(name: str) -> bytes:
            size, limit = sizes.get(name), _MAX_BYTES.get(name, _MAX_FILE_BYTES)
            if size is None:
                raise NotFound(
                    f"{text} has no {name}; was it made by `podracer push`?", reason="NO_CHECKPOINT"
                )
            if size > limit:
                raise InvalidInput(
                    f"{text}: {name} has {size:,} bytes; at most {limit:,} are fetched"
                )
            place = {"revision": found.sha, "local_dir": f"{folder}/fetched"}
            path = within(_FETCH_S, text, lambda: hub.hf_hub_download(repository, name, **place))
            return Path(path).read_bytes()

        policy = Path(folder, "policy")
        policy.mkdir()
        _write_checked(policy, fetch(FILE_NAME), sizes, fetch)
        yield policy


def _write_checked(
    policy: Path, manifest_bytes: bytes, sizes: Mapping[str, int | None], fetch: Any
) -> None:
    manifest = Manifest.from_json(manifest_bytes)
    files = acting_files(manifest)
    write_whole(policy / FILE_NAME, replace(manifest, files=files).to_json())
    require_harmless(policy, "the repository", "download it and name the folder")
    for file in files:
        if sizes.get(file.path, file.size_bytes) != file.size_bytes:
            raise DataCorrupted(
                f"{file.path} has {sizes[file.path]} bytes; its manifest says {file.size_bytes}"
            )
        data = fetch(file.path)
        file.verify(data)
        write_whole(policy / file.path, data)


def acting_files(manifest: Manifest) -> tuple[ManifestFile, ...]:
    """The files that acting needs, all in the manifest's own folder. Raises InvalidInput without an
    actor."""
    files = tuple(replace(file, folder="") for file in manifest.files if file.path in ACTING)
    if ACTING[0] not in {file.path for file in files}:
        raise InvalidInput(
            f"this is no policy's checkpoint: it has no {ACTING[0]}", reason="NOT_A_POLICY"
        )
    return files


def require_harmless(policy: Path, author: str, instead: str) -> None:
    """Raises InvalidInput if acting would import code, or read a file, that `author` has named."""
    environment = trained_environment(policy)
    local = [name for name, file in environment.data.items() if isinstance(file, str)]
    if environment.entry_point or environment.code_path or ":" in environment.id or local:
        raise InvalidInput(
            f"its environment {environment.name} would run code or read files that {author} chose; "
            f"if you trust it, {instead}",
            reason="UNTRUSTED_ENVIRONMENT",
        )
