"""Names, downloads, watching and checkpoints, without a server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from podracer.orchestrator.v1 import artifact_service_pb2, job_pb2, job_service_pb2
from podracer_client.jobs import Client, Follower
from podracer_client.names import is_checkpoint_name, job_name, leaderboard_name
from podracer_client.policies import checkpoint_folder
from podracer_core.errors import AlreadyExists, DataCorrupted, InvalidInput, NotFound, Unavailable
from podracer_platform.attachments import receive_artifact
from support.errors import raises

Response = artifact_service_pb2.DownloadResponse


def test_a_job_is_called_by_its_id_or_its_name():
    assert (
        job_name("cartpole-x7")
        == job_name("projects/default/jobs/cartpole-x7")
        == "projects/default/jobs/cartpole-x7"
    )
    assert leaderboard_name("j") == "projects/default/leaderboards/j"
    for text in ("", "UPPER", "a/b", "projects/default/jobs/", "x" * 64, "../x"):
        with raises(InvalidInput, "INVALID_NAME", field="job"):
            job_name(text)


def test_names_of_checkpoints():
    assert is_checkpoint_name("projects/default/jobs/j/checkpoints/best")
    assert is_checkpoint_name("projects/default/jobs/j/agents/a0001/checkpoints/4096-3")
    assert not is_checkpoint_name("runs/objects/projects/default/jobs/j/checkpoints/best")


def stream(files: dict[str, bytes], *, sha256: str = "") -> Iterator[Response]:
    yield Response(
        artifact=artifact_service_pb2.Artifact(name="n", size_bytes=sum(map(len, files.values())))
    )
    for path, data in files.items():
        digest = sha256 or hashlib.sha256(data).hexdigest()
        yield Response(
            file=artifact_service_pb2.ArtifactFile(path=path, size_bytes=len(data), sha256=digest)
        )
        for start in range(0, len(data), 3):
            yield Response(data=data[start : start + 3])


def test_a_download_writes_every_file(tmp_path):
    files = {"manifest.json": b"{}", "replay/0.safetensors": b"0123456789", "empty": b""}
    artifact = receive_artifact(stream(files), tmp_path / "a" / "checkpoint")
    assert artifact.name == "n"
    folder = tmp_path / "a" / "checkpoint"
    assert {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    } == files
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", ""])
def test_a_download_stays_in_its_folder(tmp_path, path):
    with pytest.raises(DataCorrupted, match="below"):
        receive_artifact(stream({path: b"x"}), tmp_path / "checkpoint")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_download_leaves_nothing(tmp_path):
    with pytest.raises(DataCorrupted, match="manifest"):
        receive_artifact(stream({"manifest.json": b"{}"}, sha256="0" * 64), tmp_path / "checkpoint")
    assert list(tmp_path.iterdir()) == []


def test_a_download_overwrites_nothing(tmp_path):
    (tmp_path / "file").write_text("mine")
    for target in (tmp_path, tmp_path / "file"):
        with pytest.raises(AlreadyExists):
            receive_artifact(stream({}), target)


class FakeJobs:
    """WatchJob plays one script a call: responses, then an error or the end."""

    def __init__(self, *scripts: Iterable[Any]) -> None:
        self.scripts = list(scripts)
        self.positions: list[int] = []

    def WatchJob(self, request: job_service_pb2.WatchJobRequest) -> Any:
        self.positions.append(request.after_position)
        return FakeCall(self.scripts.pop(0) if self.scripts else [Unavailable("away")])


class FakeCall:
    def __init__(self, script: Iterable[Any]) -> None:
        self._script = iter(script)

    def __iter__(self) -> FakeCall:
        return self

    def __next__(self) -> Any:
        item = next(self._script)
        if isinstance(item, Exception):
            raise item
        return item

    def cancel(self) -> None:
        self._script = iter(())


def news(*positions: int, state: int = job_pb2.JOB_STATE_RUNNING, draining: bool = False) -> Any:
    return job_service_pb2.WatchJobResponse(
        job=job_pb2.Job(name="n", state=state),  # type: ignore[arg-type]
        events=[job_pb2.Event(position=position) for position in positions],
        draining=draining,
    )


def followed(jobs: FakeJobs, **options: Any) -> Follower:
    servers = SimpleNamespace(job_service=jobs)
    return Follower(lambda: servers, job_pb2.Job(name="n"), **options)  # type: ignore[arg-type, return-value]


def test_a_watch_goes_on_where_it_was_cut_off():
    end = news(4, state=job_pb2.JOB_STATE_SUCCEEDED)
    jobs = FakeJobs(
        [news(1), news(2), Unavailable("reset")], [news(draining=True)], [], [news(2, 3), end]
    )
    updates = list(followed(jobs))
    assert [event.position for update in updates for event in update.events] == [1, 2, 3, 4]
    assert jobs.positions == [0, 2, 2, 2]
    assert updates[-1].ended


def test_a_watch_gives_up_after_its_patience():
    times = iter(range(100))
    silent = FakeJobs(*[[] for _ in range(9)])
    with pytest.raises(Unavailable, match="says nothing"):
        list(followed(silent, patience_s=2, clock=lambda: float(next(times))))
    jobs = FakeJobs([news(1)])
    watch = iter(followed(jobs, patience_s=2, clock=lambda: float(next(times))))
    assert next(watch).events[0].position == 1
    with pytest.raises(Unavailable, match="2 s: away"):
        next(watch)


def test_what_the_server_refuses_ends_a_watch():
    with pytest.raises(NotFound):
        list(followed(FakeJobs([NotFound("no such job")])))


def test_a_cancelled_watch_ends():
    watch = followed(FakeJobs([news(1), news(2)]))
    for _ in watch:
        watch.cancel()


def no_server() -> Client:
    raise AssertionError("nothing is asked of a server")


def test_a_local_checkpoint_is_its_folder(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    for text in (str(tmp_path), str(tmp_path / "manifest.json")):
        with checkpoint_folder(text, no_server) as folder:
            assert folder == tmp_path


def test_what_is_no_checkpoint(tmp_path):
    (tmp_path / "file").write_text("")
    cases = {"": InvalidInput, "file": InvalidInput, "missing": NotFound}
    for name, error in cases.items():
        with (
            pytest.raises(error, match="checkpoint"),
            checkpoint_folder(str(tmp_path / name), no_server),
        ):
            pass
