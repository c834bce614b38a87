"""A code folder becomes an archive that depends on nothing but its content."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from pathlib import Path

import pytest

from podracer_core.errors import InvalidInput
from podracer_platform.attachments import code_archive, code_files, pack_code
from support.code import write_files
from support.errors import raises

FILES = {
    "__init__.py": "",
    "envs.py": "class MyEnv: ...\n",
    "maps/small.txt": "#.#\n",
    "ünïcode.txt": "ä",
}
ENTRY_POINT = "my_pkg.envs:MyEnv"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_files(tmp_path / "my_pkg", FILES)


def names(packed: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(packed)).namelist()


def test_a_package_folder_stands_in_the_archive_by_its_name(package):
    expected = [
        "my_pkg/__init__.py",
        "my_pkg/envs.py",
        "my_pkg/maps/small.txt",
        "my_pkg/ünïcode.txt",
    ]
    assert names(pack_code(package, ENTRY_POINT)) == expected


def test_a_folder_that_holds_packages_does_not(package):
    (package.parent / "alone.py").write_text("")
    packed = names(pack_code(package.parent, ENTRY_POINT))
    assert packed[0] == "alone.py"
    assert "my_pkg/envs.py" in packed
    assert names(pack_code(package.parent, "alone:Env")) == packed


def test_the_same_content_gives_the_same_bytes(package, tmp_path):
    first = pack_code(package, ENTRY_POINT)
    copy = tmp_path / "elsewhere" / "my_pkg"
    # another order of creation, other times, and what does not belong to it
    for name in reversed(FILES):
        write_files(copy, {name: FILES[name]})
    os.utime(copy / "envs.py", (1, 1))
    (copy / "envs.py").chmod(0o600)
    write_files(
        copy, {".git/config": "x", ".hidden": "x", "__pycache__/envs.pyc": "x", "maps/old.pyc": "x"}
    )
    assert pack_code(copy, ENTRY_POINT) == first
    (copy / "maps" / "small.txt").write_text("#..\n")
    assert pack_code(copy, ENTRY_POINT) != first


def test_the_state_folder_of_podracer_is_left_out(package):
    """`code: .` where `podracer run` makes its runs/: tokens must not go along, nor what was
    uploaded before."""
    first = pack_code(package, ENTRY_POINT)
    write_files(
        package / "runs",
        {"lock": "1", "tokens/client": "x", "orchestrator.sqlite": "", "objects/a": "x"},
    )
    assert pack_code(package, ENTRY_POINT) == first


def test_a_program_stays_one(package):
    (package / "envs.py").chmod(0o755)
    modes = {file.path: file.executable for file in code_files(package, ENTRY_POINT)}
    assert modes["my_pkg/envs.py"]
    assert not modes["my_pkg/__init__.py"]


def test_links_inside_are_packed_as_what_they_point_to(package):
    (package / "same.py").symlink_to("envs.py")
    (package / "plans").symlink_to(package / "maps")
    with zipfile.ZipFile(io.BytesIO(pack_code(package, ENTRY_POINT))) as archive:
        assert archive.read("my_pkg/same.py") == b"class MyEnv: ...\n"
        assert archive.read("my_pkg/plans/small.txt") == b"#.#\n"
        assert not any(entry.external_attr >> 28 == 0o12 for entry in archive.infolist())


def _link_outside(package: Path) -> None:
    (package.parent / "secret.txt").write_text("x")
    (package / "leak.txt").symlink_to("../secret.txt")


def _link_to_itself(package: Path) -> None:
    (package / "maps" / "again").symlink_to(package / "maps")


def _too_deep(package: Path) -> None:
    (package / "/".join("d" * 40)).mkdir(parents=True)


def _many_ways(package: Path) -> None:
    """No circle and no file, but 2²⁰ paths."""
    for level in range(20):
        (package / f"level{level}").mkdir()
    for level in range(19):
        for name in ("left", "right"):
            (package / f"level{level}" / name).symlink_to(package / f"level{level + 1}")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (
            _link_outside,
            "leak.txt is a link to {parent}/secret.txt, outside of {parent}/my_pkg: copy what",
        ),
        (_link_to_itself, "maps/again is a link to a folder that it lies in"),
        (
            lambda package: (package / "gone.txt").symlink_to("nowhere"),
            "gone.txt is a link to nothing",
        ),
        (lambda package: (package / "round").symlink_to("round"), "round is a link to nothing"),
        (lambda package: os.mkfifo(package / "pipe"), "pipe is neither a file nor a folder"),
        (lambda package: (package / "a\\b").touch(), "cannot stand in an archive"),
        (lambda package: (package / "a\nb").touch(), "cannot stand in an archive"),
        (_too_deep, "the name 'd' cannot stand in an archive, or is too deep or too long"),
        (_many_ways, "my_pkg has more than 10_000 folders, which is the limit"),
        (shutil.rmtree, "cannot read"),
    ],
    ids=[
        "outside",
        "itself",
        "nothing",
        "circle",
        "pipe",
        "backslash",
        "newline",
        "deep",
        "ways",
        "gone",
    ],
)
def test_what_cannot_be_sent_is_refused(package, spoil, problem):
    spoil(package)
    with pytest.raises(InvalidInput) as refused:
        pack_code(package, ENTRY_POINT)
    assert problem.format(parent=package.parent) in refused.value.message
    assert [violation.field for violation in refused.value.violations] == ["environment.code"]


def test_a_file_that_cannot_be_read_is_refused(package, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "envs.py")
    with raises(InvalidInput, "INVALID_CODE", match="permission denied"):
        pack_code(package, ENTRY_POINT)


def test_a_file_that_changes_meanwhile(package, monkeypatch):
    """What is added to it, as to a log, stays out; where it has lost something, nothing is sent."""
    files = code_files(package, ENTRY_POINT)
    monkeypatch.setattr(code_archive, "code_files", lambda *_: files)
    first = pack_code(package, ENTRY_POINT)
    with (package / "envs.py").open("a") as log:
        log.write("more")
    assert pack_code(package, ENTRY_POINT) == first
    (package / "envs.py").write_text("")
    with raises(InvalidInput, "INVALID_CODE", match="changed while"):
        pack_code(package, ENTRY_POINT)


@pytest.mark.parametrize(
    ("entry_point", "module"), [("other.envs:MyEnv", "other"), ("my_pk:MyEnv", "my_pk")]
)
def test_the_module_of_the_entry_point_must_be_there(package, entry_point, module):
    with raises(
        InvalidInput, "INVALID_CODE", field="environment.code", match=f" {module} of {entry_point}"
    ):
        pack_code(package, entry_point)


def test_a_package_folder_without_init_says_so(package):
    (package / "__init__.py").unlink()
    with raises(InvalidInput, "INVALID_CODE", match="my_pkg itself"):
        pack_code(package, ENTRY_POINT)


def test_one_message_names_size_limit_and_the_largest_files(package, monkeypatch):
    write_files(package, {"data/large.bin": bytes(3 << 20), "data/small.bin": bytes(1 << 20)})
    monkeypatch.setattr(code_archive, "MAX_UNPACKED_BYTES", 2 << 20)
    with pytest.raises(InvalidInput) as refused:
        pack_code(package, ENTRY_POINT)
    assert refused.value.message.startswith(
        f"{package} has 4.0 MiB, the limit is 2.0 MiB; its largest files: my_pkg/data/large.bin "
        "(3.0 MiB), my_pkg/data/small.bin (1.0 MiB), "
    )


def test_too_many_files(package, monkeypatch):
    monkeypatch.setattr(code_archive, "MAX_FILES", 3)
    with raises(InvalidInput, "INVALID_CODE", match="files: my_pkg/"):
        pack_code(package, ENTRY_POINT)


def test_a_large_archive(package, monkeypatch):
    write_files(package, {"data/noise.bin": os.urandom(1 << 20)})
    monkeypatch.setattr(code_archive, "MAX_PACKED_BYTES", 1 << 19)
    with raises(InvalidInput, "INVALID_CODE", match="files: my_"):
        pack_code(package, ENTRY_POINT)
