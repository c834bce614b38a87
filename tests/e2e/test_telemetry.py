"""One trace across all services, metrics of each, logs that know their trace: real processes, a
real collector."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.deployment import Deployment
from support.otlp_collector import Collector, ReceivedSpan, otlp_collector
from support.processes import wait_until

pytestmark = pytest.mark.thorough
JOB = {
    "name": "traced",
    "environment": {"id": "CartPole-v1"},
    "objective": {"target_return": 100, "max_duration": "120s"},
    "search": {"algorithms": ["ppo"]},
    "evolution": {"population": 2, "round": {"seconds": 3}},
    "pod": {"count": 1, "layout": "split", "workers": 1, "envs_per_member": 16},
    "evaluation": {"episodes": 8},
}
SERVICES = {"orchestrator", "leaderboard", "learner", "worker", "evaluator"}
ROOT = "orchestrator JobService/CreateJob"
TRAIN = ["learner train", "orchestrator grant", ROOT]
COMPLETE = ["orchestrator PodService/CompleteWork", "learner PodService/CompleteWork", *TRAIN]
HEARD_OF_PROPOSAL = [
    f"{service} LeaderboardService/ProposeCohort" for service in ("leaderboard", "orchestrator")
]
HEARD_OF_CANDIDATE = [
    [
        *(f"{service} LeaderboardService/{method}" for service in ("leaderboard", "orchestrator")),
        "orchestrator deliver",
    ]
    for method in ("Exchange", "SubmitCandidate")
]
"""Together with evaluations, or by itself."""
LINES = [
    # Each is the child of the one behind it.
    [ROOT],
    [*HEARD_OF_PROPOSAL, "orchestrator propose", ROOT],
    ["learner set up", *TRAIN],
    ["worker start environments", *TRAIN],
    ["worker collect rollout", "learner collect", *TRAIN],
    ["learner gradient steps", "learner update", *TRAIN],
    ["evaluator evaluate policies", "learner order", *TRAIN],
    ["learner write checkpoints", *TRAIN],
    COMPLETE,
]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with otlp_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
        yield collector


@pytest.fixture
def deployment(tmp_path: Path, collector: Collector) -> Iterator[Deployment]:
    deployment = Deployment(
        tmp_path,
        (tmp_path / "store").as_uri(),
        log_json="true",
        metrics_listen="127.0.0.1:0",
        trace_dir=str(tmp_path / "traces"),
    )
    try:
        deployment.start_leaderboard()
        deployment.start_orchestrator()
        deployment.start_split_pod("a")
        yield deployment
    finally:
        deployment.end_processes()


def test_one_trace_from_the_client_to_a_gradient_step(deployment, collector, run, tmp_path):
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    options = ["--orchestrator", deployment.addresses["orchestrator"]]
    options += ["--leaderboard", deployment.addresses["leaderboard"]]
    options += ["--token-file", str(deployment.secrets / "tokens" / "client")]
    command = run("submit", "job.json", "--watch", "--json", *options, timeout_s=240)
    assert command.returncode == 0, command.stderr
    job = next(event["job"] for event in command.events if "job" in event)

    def missing() -> list[list[str]]:
        there = lineages(collector.spans)
        heard = [[*line, *COMPLETE] for line in HEARD_OF_CANDIDATE]
        return [line for line in LINES if line not in there] + (
            [] if any(each in there for each in heard) else heard
        )

    wait_until(lambda: not missing(), 60, f"the spans {missing()}")
    spans = collector.spans
    (created,) = [one for one in spans if f"{one.service} {one.name}" == ROOT]
    assert created.parent_id == ""
    assert created.attributes["job"].endswith(job.rpartition("/")[2])
    assert {one.trace_id for one in spans} == {created.trace_id}
    assert {one.service for one in spans} == SERVICES
    rounds = [one for one in spans if one.name == "train"]
    assert all(
        one.attributes["seconds.update"] > 0.0 and one.attributes["iterations"] > 0
        for one in rounds
    )
    updates = [one.parent_id for one in spans if one.name == "update"]
    assert all(updates.count(one.span_id) <= 12 for one in rounds)  # however many there were

    check_metrics(deployment, collector, created.attributes["job"])
    check_logs(deployment, created.trace_id)
    traced = run("trace", job.rpartition("/")[2], "page.html", "--traces", str(tmp_path / "traces"))
    assert traced.returncode == 0, traced.stderr
    assert all(service in "\n".join(traced.lines) for service in SERVICES)
    assert "gradient steps" in (tmp_path / "page.html").read_text()


def lineages(spans: list[ReceivedSpan]) -> list[list[str]]:
    """Of every span, itself and those above it."""
    by_id = {one.span_id: one for one in spans}
    found = []
    for one in spans:
        line, above = [], one
        while above is not None:
            line.append(f"{above.service} {above.name}")
            above = by_id.get(above.parent_id)
        found.append(line)
    return found


def check_metrics(deployment: Deployment, collector: Collector, job: str) -> None:
    wanted = {
        "orchestrator": [
            r'podracer_leases_total{event="granted"} [1-9]',
            r'podracer_leases_total{event="completed"} [1-9]',
            r'podracer_jobs{state="SUCCEEDED"} 1.0',
            r'podracer_pods{state="IDLE"} 1.0',
            r'podracer_rpc_server_duration_seconds_count{code="OK",method="JobService/CreateJob"} '
            r"1.0",
            r"podracer_outbox_size 0.0",
        ],
        "leaderboard": [
            r'podracer_proposals_total{action="fresh"} [1-9]',
            r"podracer_candidates_total{",
        ],
        "a-learner": [
            r'podracer_steps_total{algorithm="ppo"} [1-9]',
            r'podracer_phase_time_seconds_total{algorithm="ppo",phase="update"} ',
            r"podracer_checkpoint_size_bytes_total [1-9]",
            r'podracer_works_total{kind="train",result="done"} [1-9]',
        ],
        "a-worker0": [r"podracer_worker_steps_total [1-9]", r"process_memory_usage_bytes [1-9]"],
        "a-evaluator": [r'podracer_evaluator_episodes_total{purpose="candidate"} [1-9]'],
    }
    for name, patterns in wanted.items():
        url = next(iter(re.findall(r"http://[\d.:]+/metrics", deployment.log(name))))

        def missing(url: str = url, patterns: list[str] = patterns) -> list[str]:
            with urllib.request.urlopen(url, timeout=30) as answer:
                text = answer.read().decode()
            assert job.rpartition("/")[2] not in text
            return [
                one
                for one in patterns
                if not re.search(one.replace("{", r"\{").replace("}", r"\}"), text)
            ]

        wait_until(lambda missing=missing: not missing(), 60, f"{missing()} of {name}")
    wait_until(
        lambda: {service for service, _ in collector.metrics} == SERVICES,
        60,
        "metrics of all services",
    )


def check_logs(deployment: Deployment, trace_id: str) -> None:
    lines = [
        json.loads(line)
        for line in deployment.log("a-learner").splitlines()
        if line.startswith("{")
    ]
    leased = [line for line in lines if line["message"].startswith("leased ")]
    assert leased
    assert {line["trace_id"] for line in leased} == {trace_id}
    assert all("trace_id" not in line for line in lines if line["message"].startswith("metrics at"))
