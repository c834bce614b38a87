"""From a spec with files in the object store to one that can be started here."""

from __future__ import annotations

from pathlib import Path

import pytest

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.errors import InvalidInput, PreconditionFailed
from podracer_platform.attachments import FileCache, place_environment
from support.code import make_zip, stored
from support.errors import raises

PACKED = make_zip(("my_pkg/__init__.py", b""))
CODE, TABLE = stored(PACKED, "code.zip"), stored(b"a,b\n", "prices.csv")
SPEC = EnvironmentSpec(
    entry_point="my_pkg:MyEnv", kwargs={"size": 3}, code=CODE, data={"table": TABLE}
)


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "cache", 1 << 20)


def test_files_become_paths_and_stay_until_it_is_closed(cache, tmp_path):
    cache.add(CODE, [PACKED]).close()
    cache.add(TABLE, [b"a,b\n"]).close()
    with place_environment(SPEC, cache) as placed:
        child = placed.spec.to_json()
        assert Path(child["code_path"], "my_pkg", "__init__.py").is_file()
        table = next(tmp_path.glob(f"cache/*/{TABLE.sha256}.csv"))
        assert child["kwargs"] == {"size": 3, "table": str(table)}
        assert Path(child["kwargs"]["table"]).read_text() == "a,b\n"
        assert placed.spec.stored_files == ()


def test_it_says_what_is_missing(cache):
    cache.add(CODE, [PACKED]).close()
    with raises(PreconditionFailed, "FILES_MISSING") as missing:
        place_environment(SPEC, cache)
    assert TABLE.sha256 in missing.value.message


def test_code_that_must_not_be_unpacked_is_told(cache):
    packed = make_zip(("/etc/passwd", b"x"))
    cache.add(stored(packed, "code.zip"), [packed]).close()
    with raises(InvalidInput, "INVALID_CODE_ARCHIVE"):
        place_environment(
            EnvironmentSpec(entry_point="a:B", code=stored(packed, "code.zip")), cache
        )


def test_an_environment_without_files_touches_no_cache(cache, tmp_path):
    spec = EnvironmentSpec(id="CartPole-v1")
    with place_environment(spec, cache) as placed:
        assert placed.spec == spec
    assert not (tmp_path / "cache").exists()
