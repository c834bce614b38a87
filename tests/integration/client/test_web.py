"""The live page over HTTP, of real services in which no pod works."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer_client import Client
from podracer_client.jobs import Agent, Objective
from podracer_client.local import resting_services
from podracer_client.web import application, following, serve_page
from podracer_core.catalogue import find_algorithm
from podracer_core.errors import Exhausted, InvalidInput, NotFound
from podracer_platform.jobs import parse_experiment
from podracer_platform.messages import hyperparameter_to_message
from support.errors import raises
from support.live_page import enter
from support.processes import wait_until

pytest.importorskip("uvicorn", reason="needs the extra podracer-client[web]")
requests = pytest.importorskip("requests")

from podracer_client.web import (  # noqa: E402
    agent_values,
)

JOB = (
    "name: cartpole\nenvironment: CartPole-v1\nobjective: {target_return: 475, max_duration: 1m}\n"
)
BAD = "name: cartpole\nenvironment: CartPole-v1\nobjective: {target_return: high}\nspeed: 9\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    with resting_services(folder) as client:
        yield client


@pytest.fixture(scope="module")
def url(client: Client) -> Iterator[str]:
    with serve_page(lambda: client, client, hosts=["podracer.example"]) as url:
        yield url


@pytest.fixture
def origin(url: str) -> str:
    return url.partition("/#key=")[0]


@pytest.fixture
def browser(url: str, origin: str) -> Iterator[Any]:
    """A session that has the cookie, and sends what the page's own scripts send."""
    with requests.Session() as session:
        session.headers.update({"origin": origin, "x-podracer-web": "1"})
        key = url.partition("#key=")[2]
        answer = session.post(
            f"{origin}/api/session", headers={"authorization": f"Bearer {key}"}, timeout=60
        )
        assert answer.status_code == 204
        words = answer.headers["set-cookie"].lower()
        assert "httponly" in words
        assert "samesite=strict" in words
        yield session


@pytest.fixture
def act(browser: Any, origin: str) -> Callable[..., tuple[int, Any]]:
    def act(name: str, **asked: Any) -> tuple[int, Any]:
        answer = browser.post(f"{origin}/api/acts/{name}", json=asked, timeout=60)
        return answer.status_code, answer.json()

    return act


def frames(browser: Any, origin: str, job: str = "") -> Iterator[dict[str, Any]]:
    """Each frame of a stream."""
    with browser.get(
        f"{origin}/api/news", params={"job": job} if job else {}, stream=True, timeout=60
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


def values_until(
    stream: Iterator[dict[str, Any]], done: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """The values and logs of a stream, once `done` holds for them."""
    known: dict[str, Any] = {"events": []}
    for frame in stream:
        known |= frame["values"]
        known["events"] += frame["logs"].get("events", [])
        if done(known):
            return known
    raise AssertionError("the stream has ended")


@pytest.mark.parametrize(
    "path", ["/api/news", "/api/acts/cancel", "/static/app.js", "/static/views/job.js", "/"]
)
def test_without_the_cookie_nothing_is_shown(origin, path):
    for cookies in ({}, {f"podracer_web_{urlsplit(origin).port}": "guess"}):
        answer = requests.get(origin + path, cookies=cookies, timeout=60)
        assert answer.status_code == 401
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in answer.headers["content-security-policy"]
    wrong = {"authorization": "Bearer guess", "origin": origin, "x-podracer-web": "1"}
    assert requests.post(f"{origin}/api/session", headers=wrong, timeout=60).status_code == 401


def test_only_our_names_and_only_our_page_may_act(browser, origin):
    def status(method: str, path: str, **headers: str | None) -> int:
        return browser.request(
            method, origin + path, headers={**headers}, json={}, timeout=60
        ).status_code

    assert status("GET", "/") == 200
    # a name that is ours, to which no cookie was given
    assert status("GET", "/", host="podracer.example") == 401
    for host in ("evil.example", "127.0.0.1:1", "podracer.example.evil"):
        assert status("GET", "/", host=host) == 421
    assert status("GET", "/", **{"sec-fetch-site": "same-site"}) == 403
    # a link
    assert (
        status("GET", "/", **{"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}) == 200
    )
    assert (
        status("GET", "/api/jobs", **{"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})
        == 403
    )
    assert status("POST", "/api/acts/nothing") == 404
    for other in ("http://evil.example", "null", "http://127.0.0.1:1", None):
        assert status("POST", "/api/acts/nothing", origin=other) == 403
    assert status("POST", "/api/acts/nothing", **{"x-podracer-web": None}) == 403
    answer = browser.get(origin, headers={"origin": "http://evil.example"}, timeout=60)
    assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


def test_no_path_leads_out_of_its_files(browser, origin):
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    for path in (
        "/static/../application.py", "/static/%2e%2e/application.py", "/static/..%2fapplication.py",
        "/static/%2e%2e%2faccess.py", "//etc/passwd", "/static//etc/passwd",
        "/static/\\..\\..\\access.py", "/static/enter.js%00.py",
    ):  # fmt: skip
        connection = http.client.HTTPConnection(urlsplit(origin).netloc, timeout=60)
        connection.request("GET", path, headers={"cookie": cookie})
        assert connection.getresponse().status == 404, path
        connection.close()


def test_only_so_many_clients_are_told(browser, origin, monkeypatch):
    first = frames(browser, origin)
    next(first)
    monkeypatch.setattr(application, "MAX_STREAMS", 1)
    assert browser.get(f"{origin}/api/news", timeout=60).status_code == 503
    first.close()


def test_the_files_of_the_page_ask_for_nothing_elsewhere_and_hold_nothing_inline(browser, origin):
    static = Path(following.__file__).parent / "static"
    for path in [*static.rglob("*.*")]:
        answer = browser.get(f"{origin}/static/{path.relative_to(static)}", timeout=60)
        assert answer.status_code == 200
        text = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
        if path.suffix == ".html":
            assert "style=" not in text
            assert "<script>" not in text
            assert " on" not in [word[:3] for word in text.split("<")]
        assert "innerHTML" not in text


def test_submit_watch_and_every_act(browser, origin, act, folder):
    every = frames(browser, origin)
    status, submitted = act("submit", text=JOB)
    assert status == 200
    (job,) = submitted["jobs"]
    values_until(
        every,
        lambda known: any(
            value and value.get("id") == job for key, value in known.items() if "job/" in key
        ),
    )
    every.close()

    stream = frames(browser, origin, job)
    known = values_until(
        stream, lambda known: known.get("job", {}).get("state") == "PENDING" and known["events"]
    )
    assert known["job"]["objective"]["target"] == 475
    assert (folder / "tokens" / "client").read_text().strip() not in json.dumps(known)
    assert known["connection"]["state"] == "live"
    assert act("suspend", job=job)[0] == 200
    values_until(stream, lambda known: known.get("job", {}).get("state") == "SUSPENDED")
    assert act("resume", job=job)[0] == 200
    assert act("scale", job=job, min=2, max=3)[0] == 200
    values_until(
        stream,
        lambda known: known.get("job", {}).get("pod_count") == {"min": 2, "max": 3, "learners": 1},
    )
    assert act("scale", job=job, min=0) == (
        400,
        {"message": "min: is 0, expected 1 to 4096", **_lines("INVALID_INPUT")},
    )
    status, refused = act("promote", job=job, agent="a0001")
    assert (status, refused["reason"]) == (404, "NOT_FOUND")
    for name in ("fork", "pin", "unpin", "stop"):
        status, refused = act(name, job=job, agent="a0001")
        assert (status, refused["reason"]) == (404, "AGENT_NOT_FOUND")
    assert (
        act("fork", **{"job": job, "agent": "a0001", "set-gamma": 1})[1]["message"]
        == "set-gamma: expected a text"
    )
    status, refused = act("rollback", job=job)
    assert (status, refused["reason"]) == (409, "NO_FORMER_POLICY")
    assert act("delete", job=job)[0] == 409
    assert act("cancel", job=job)[0] == 200
    values_until(stream, lambda known: known.get("job", {}).get("state") == "CANCELLED")
    assert act("delete", job=job)[0] == 200
    values_until(stream, lambda known: known.get("connection", {}).get("state") == "gone")
    stream.close()


def _lines(reason: str) -> dict[str, Any]:
    return {"reason": reason, "lines": []}


def test_a_bad_job_file_is_told_as_by_the_command(act, tmp_path):
    with pytest.raises(InvalidInput) as told:
        parse_experiment(BAD)
    status, answer = act("submit", text=BAD)
    assert status == 400
    assert answer["message"] == told.value.message
    assert "job.yaml:4" in answer["message"]


def test_the_page_reads_no_file_of_its_machine(act, tmp_path):
    """Nor does it tell what is there: the answer to each path is the same."""
    (tmp_path / "there").mkdir()
    texts = [
        JOB.replace("CartPole-v1", "StockTrading-v0") + "data: {table: PATH}\n",
        JOB.replace("CartPole-v1", "{entry_point: 'a:B', code: PATH}"),
        JOB + "warm_start: {checkpoint: PATH}\n",
        JOB.replace("CartPole-v1", "{entry_point: 'a:B'}")
        + "matrix: {environment.code: [PATH, another]}\n",
    ]
    for text in texts:
        paths = (
            tmp_path / "there",
            tmp_path / "missing",
            "/proc/self/environ",
            "~nobody/x",
            "/etc",
            "a\\0b",
        )
        answers = [act("submit", text=text.replace("PATH", f'"{path}"')) for path in paths]
        assert {status for status, _ in answers} == {400}
        assert len({answer["message"] for _, answer in answers}) == 1, answers
        assert (
            "names a local file; submit such a job with `podracer submit`"
            in answers[0][1]["message"]
        )


def test_what_sends_no_whole_request_is_closed(origin, url, monkeypatch):
    host = urlsplit(origin).netloc
    monkeypatch.setattr(application, "REQUEST_S", 0.1)
    key = url.partition("#key=")[2]
    whole = f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"
    session = (
        f"POST /api/session HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nX-Podracer-Web: 1\r\n"
    )
    with socket.create_connection(
        ("127.0.0.1", urlsplit(origin).port or 0), timeout=60
    ) as entering:
        entering.sendall(
            f"{session}Authorization: Bearer {key}\r\nContent-Length: 0\r\n\r\n".encode()
        )
        cookie = re.search(rb"set-cookie: ([^;]+)", entering.recv(4096))
    assert cookie is not None
    act = (
        f"POST /api/acts/cancel HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nX-Podracer-Web: "
        "1\r\n"
    )
    body = f"{act}Cookie: {cookie[1].decode()}\r\nContent-Length: 9\r\n\r\n{{"
    for begun in ("", whole[:-2], whole + whole[:-2], body):
        with socket.create_connection(
            ("127.0.0.1", urlsplit(origin).port or 0), timeout=60
        ) as connection:
            connection.sendall(begun.encode())
            while connection.recv(4096):
                pass
    news = f"GET /api/news HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie[1].decode()}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", urlsplit(origin).port or 0), timeout=60) as stream:
        stream.sendall(news.encode())
        assert b"200 OK" in stream.recv(4096)
        stream.settimeout(0.5)  # several times as long: a stream of news stays
        with contextlib.suppress(TimeoutError):
            while True:
                assert stream.recv(1 << 16)


def test_a_matrix_makes_several_jobs(act):
    status, answer = act("submit", text=f"{JOB}matrix: {{seed: [1, 2]}}\n")
    assert status == 200
    assert len(answer["jobs"]) == 2
    for job in answer["jobs"]:
        act("cancel", job=job)


def test_what_is_no_act_is_refused(browser, origin, act):
    assert act("train")[0] == 404
    assert act("cancel", job="missing")[0] == 404
    for job in (["missing"], "<script>alert(1)</script>", "\ud800"):
        assert act("cancel", job=job)[0] == 400
    hostile = {"job": "missing", "agent": "a0001", "set-x": "!!python/object/apply:os.system [id]"}
    assert "tags are not allowed" in act("fork", **hostile)[1]["message"]
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{c}: &{c} [{','.join(['*' + b] * 9)}]\n"
        for b, c in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert "more than 20000 values" in act("submit", text=bomb)[1]["message"]
    answer = browser.post(f"{origin}/api/acts/submit", data=b"x" * (1 << 20) + b"y", timeout=60)
    assert answer.json()["reason"] == "TOO_LARGE"
    for body in (b"[]", b"nonsense", b'{"text":' + b"[" * 100_000 + b"]" * 100_000 + b"}"):
        assert browser.post(f"{origin}/api/acts/submit", data=body, timeout=60).status_code == 400


def test_a_candidate_that_is_not_ranked_is_not_filmed(client, act):
    job = client.job(act("submit", text=JOB)[1]["jobs"][0]).name
    wait_until(lambda: client.job(job).message.leaderboard, 60, "the leaderboard's name")
    assert act("film", job=job, agent="a0001")[0] == 404
    act("cancel", job=job)


class TestVideos:
    """What is kept of the videos; the filming itself is that of `podracer video`."""

    class OneBoard:
        """A client that knows a job with two candidates."""

        def job(self, name: str) -> Any:
            return SimpleNamespace(message=SimpleNamespace(leaderboard=name))

        def leaderboard(self, name: str) -> Any:
            board = leaderboard_service_pb2.Leaderboard()
            for rank in (1, 2):
                agent = f"projects/default/jobs/j/agents/a000{rank}"
                candidate = board.candidates.add(agent=leaderboard_service_pb2.Agent(name=agent))
                candidate.evaluation.checkpoint.prefix = (
                    f"projects/default/jobs/u/agents/a000{rank}/checkpoints/512-1/"
                )
            return board

    @pytest.fixture
    def filmed(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        filmed: list[str] = []

        def film(policy: str, *others: Any) -> tuple[str, str]:
            filmed.append(policy)
            return "data:", "an episode"

        monkeypatch.setattr(application, "film", film)
        return filmed

    def test_each_snapshot_is_filmed_once_and_the_oldest_goes(self, tmp_path, filmed, monkeypatch):
        monkeypatch.setattr(application, "KEPT", 1)
        kept = application.Videos(tmp_path)
        for agent in ("a0001", "a0001", "a0002", "a0001"):
            found = kept.film(self.OneBoard(), {"job": "j", "agent": agent})  # type: ignore[arg-type]
            assert found == {"video": "data:", "text": "after 0 training steps: an episode"}
        agents = [policy.removeprefix("projects/default/jobs/j/agents/") for policy in filmed]
        assert agents == [f"{agent}/checkpoints/512-1" for agent in ("a0001", "a0002", "a0001")]

    def test_one_at_a_time(self, tmp_path, filmed):
        kept = application.Videos(tmp_path)
        with kept._turn, raises(Exhausted, "FILMING"):
            kept.film(self.OneBoard(), {"job": "j", "agent": "a0001"})  # type: ignore[arg-type]
        assert filmed == []


def test_no_secret_is_logged(browser, url, origin, caplog):
    with caplog.at_level(logging.DEBUG):
        browser.get(origin, timeout=60)
        browser.post(f"{origin}/api/acts/cancel", json={"job": "missing"}, timeout=60)
    for secret in (url.partition("#key=")[2], *browser.cookies.values()):
        assert secret not in caplog.text


def no_server() -> Client:
    raise NotFound("no server runs yet")


def test_a_key_from_a_file_may_change_and_is_not_told(tmp_path):
    file, keys = tmp_path / "key", ["a" * 32, "b" * 40]
    file.write_text(f"{keys[0]}\n")
    with (
        serve_page(no_server, key_file=file, listen="127.0.0.2:0") as url,
        requests.Session() as session,
    ):
        origin = url.removesuffix("/")
        assert re.fullmatch(r"http://127\.0\.0\.2:\d+/", url), "without the key"
        assert session.get(url, timeout=60).status_code == 401
        assert enter(session, origin, keys[1]) == 401
        assert enter(session, origin, keys[0]) == 204
        assert session.get(url, timeout=60).status_code == 200
        (cookie,) = session.cookies.values()
        file.write_text(f"{keys[1]}\n")
        assert session.get(url, timeout=60).status_code == 401, "the former key's cookie"
        assert [enter(session, origin, key) for key in keys] == [401, 204]
    file.write_text(f"{keys[0]}\n")
    with serve_page(no_server, key_file=file) as url:  # as after a restart
        cookies = {f"podracer_web_{urlsplit(url).port}": cookie}
        assert requests.get(url, cookies=cookies, timeout=60).status_code == 200


@pytest.mark.parametrize(
    ("listen", "key", "said"),
    [
        (
            "0.0.0.0:0",
            None,
            "--listen 0.0.0.0:0: not a loopback address: give the page a key of yours, with "
            "--key-file",
        ),
        ("[::]:0", None, r"--listen \[::\]:0: not a loopback address"),
        ("unix:///tmp/page", None, "expected host:port"),
        ("127.0.0.1", None, "expected unix"),
        ("0.0.0.0:0", "", "no token in"),
        ("0.0.0.0:0", "admin", "a key has 32 characters or more, this one has 5"),
    ],
)
def test_where_it_does_not_listen(tmp_path, listen, key, said):
    if key is not None:
        (tmp_path / "key").write_text(key)
    file = None if key is None else tmp_path / "key"
    with (
        pytest.raises(InvalidInput, match=said),
        serve_page(no_server, listen=listen, key_file=file),
    ):
        pass


def test_a_page_without_servers_yet_says_so():
    with serve_page(no_server) as url, requests.Session() as session:
        origin, _, key = url.partition("/#key=")
        assert enter(session, origin, key) == 204
        stream = frames(session, origin)
        known = values_until(stream, lambda known: "connection" in known)
        assert known["connection"] == {"state": "reconnecting", "message": "no server runs yet"}
        stream.close()


def test_a_missing_extra_is_one_message(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with (
        raises(InvalidInput, "NO_WEB"),
        serve_page(lambda: None),
    ):  # type: ignore[arg-type, return-value]
        pass


def test_a_fork_is_offered_what_it_may_change():
    """The leaderboard refuses the others: tests/integration/leaderboard/test_acts.py."""
    agents = []
    for algorithm in ("ppo", "installed-elsewhere"):
        agents.append(leaderboard_service_pb2.Agent(name=f"projects/p/jobs/j/agents/{algorithm}"))
        agents[-1].spec.algorithm = algorithm
        for name, value in find_algorithm("ppo").defaults().items():
            agents[-1].spec.hyperparameters[name].CopyFrom(hyperparameter_to_message(value))
    known, unknown = agent_values(
        Agent.of(each, Objective(), Timestamp()) for each in agents
    ).values()
    assert set(unknown["forkable"]) == set(known["hyperparameters"])
    assert set(known["hyperparameters"]) - set(known["forkable"]) == set(
        find_algorithm("ppo").defaults("network")
    )


async def test_a_slow_reader_gets_the_newest_state_and_no_backlog():
    known = following.Feed(asyncio.get_running_loop(), {"events": 100})
    known.put(job=0, gone="here")
    known.append("events", range(50))
    reader = known.frames()
    assert await anext(reader) == {
        "values": {"job": 0, "gone": "here"},
        "logs": {"events": [*range(50)]},
    }
    for number in range(1, 1001):
        known.put(job=number)
        known.append("events", [50 + number])
    known.put(gone=None)
    known.put(job=1000)  # as before
    frame = await anext(reader)
    assert frame is not None
    assert frame["values"] == {"job": 1000, "gone": None}
    assert len(frame["logs"]["events"]) <= 100
    assert frame["logs"]["events"][-1] == 1050


async def test_a_long_history_comes_in_pieces(monkeypatch):
    monkeypatch.setattr(following, "ROWS_AT_ONCE", 10)
    known = following.Feed(asyncio.get_running_loop(), {"evaluations": 1000})
    known.append("evaluations", range(25))
    reader = known.frames()
    pieces = [await anext(reader) for _ in range(3)]
    assert [len(piece["logs"]["evaluations"]) for piece in pieces if piece] == [10, 10, 5]
