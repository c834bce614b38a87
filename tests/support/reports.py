"""Made-up jobs for reports: a population that learns, breeds and fails as jobs do, of any size,
without chance."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from random import Random

from podracer_client.report.records import (
    Agent,
    Candidate,
    Evaluation,
    Event,
    JobReport,
    Objective,
    Problem,
)

ALGORITHMS = ("ppo", "sac", "td3")
ROUND_S = 10.0
_STARTS = ("COPY", "COPY", "NOISE", "FUSE")


def empty_report(**changes: object) -> JobReport:
    """A job that was accepted, and of which nothing more is known; with the given fields
    instead."""
    report = JobReport(
        name="pendulum-x7",
        uid="4f2a",
        environment_id="Pendulum-v1",
        labels={},
        state="PENDING",
        outcome="",
        problem=None,
        objective=Objective(
            target=-200.0, max_env_steps=2_000_000, max_duration_s=600.0, max_cost_s=900.0
        ),
        request=(("environment", "Pendulum-v1"), ("algorithms", "auto")),
        searched={"learning_rate": True},
        created=datetime(2026, 11, 21, 12, 0, tzinfo=UTC),
        start_s=None,
        end_s=None,
        now_s=0.0,
        env_steps=0,
        train_s=0.0,
        time_to_target_s=None,
        cost_s=0.0,
        evaluation_cost_s=0.0,
        agent_count=0,
        completed_rounds=0,
        best=None,
        ensemble=None,
    )
    return replace(report, **changes)  # type: ignore[arg-type]


def failed_report() -> JobReport:
    """Its environment raised before any agent was made; every text in it tries to be HTML."""
    return empty_report(
        state="FAILED",
        end_s=2.0,
        now_s=2.0,
        labels={"note": "<i>mine</i>"},
        request=(
            ("environment", "<img src=x onerror=alert(1)>"),
            ("labels", 'note: "<i>mine</i>" & more'),
        ),
        problem=Problem(
            "USER_CODE_FAILED",
            "<b>it</b> raised & ended",
            'File "<string>"\n</pre><script>alert(1)</script>',
        ),
        events=(Event(1, "JOB_FAILED", "<script>alert(2)</script>", "", "", 2.0, {}),),
    )


def made_up_report(
    agent_count: int = 12, rounds: int = 6, *, seed: int = 0, ended: bool = True
) -> JobReport:
    """Agents of three algorithms in two pods; each is evaluated twice a round and judged at the end
    of it."""
    random = Random(seed)
    agents: list[Agent] = []
    evaluations: list[Evaluation] = []
    for number in range(agent_count):
        agent, own = _life(number, agents, rounds, random)
        agents.append(agent)
        evaluations += own
    evaluations.sort(key=lambda each: (each.time_s or 0.0, each.agent))
    judged = [each for each in evaluations if each.judges]
    best_first = sorted(judged, key=lambda each: -(each.lower or 0.0))
    board = sorted(
        {each.agent: each for each in reversed(best_first)}.values(),
        key=lambda each: -(each.lower or 0.0),
    )
    now_s = max((each.time_s or 0.0 for each in evaluations), default=0.0)
    best = best_first[0] if best_first else None
    reached = best is not None and best.lower is not None and best.lower >= -200.0
    return empty_report(
        state="SUCCEEDED" if ended else "RUNNING",
        outcome=("TARGET_REACHED" if reached else "BUDGET_USED") if ended else "",
        start_s=1.5,
        end_s=now_s if ended else None,
        now_s=now_s,
        env_steps=sum(agent.env_steps - agent.start_steps for agent in agents),
        train_s=now_s - 1.5,
        time_to_target_s=now_s - 1.5 if reached and ended else None,
        cost_s=1.9 * now_s,
        evaluation_cost_s=0.3 * now_s,
        agent_count=agent_count,
        completed_rounds=rounds,
        best=best,
        candidates=tuple(
            Candidate(rank, each.agent, each.lower, each, each.purpose == "CHALLENGE")
            for rank, each in enumerate(board[:4], 1)
        ),
        agents=tuple(agents),
        evaluations=tuple(evaluations),
        evaluation_count=len(evaluations),
        events=_events(now_s),
    )


def _life(
    number: int, agents: list[Agent], rounds: int, random: Random
) -> tuple[Agent, list[Evaluation]]:
    parent = random.choice(agents) if len(agents) >= 6 else None
    algorithm = parent.algorithm if parent else ALGORITHMS[number % 3]
    rate = 10 ** random.uniform(-4, -2)
    start_steps = parent.env_steps if parent else 0
    create_s = 2.0 + (
        0.0 if parent is None else ROUND_S * (number - 5) * rounds / (number + rounds)
    )
    speed = {"ppo": 4000, "sac": 300, "td3": 260}[algorithm]
    skill = parent.score if parent and parent.score is not None else -1500.0
    name = f"a{number + 1:04}"
    own: list[Evaluation] = []
    for step in range(1, 2 * random.randint(1, rounds) + 1):
        skill += (-150.0 - skill) * 0.18 * math.exp(
            -((math.log10(rate) + 3.0) ** 2)
        ) + random.gauss(0, 30)
        spread = 40.0 + 120.0 * random.random()
        judges = step % 2 == 0
        own.append(
            Evaluation(
                agent=name,
                env_steps=start_steps + step * speed,
                time_s=create_s + step * ROUND_S / 2,
                train_s=ROUND_S / 2 * (2 - step % 2),
                mean=skill,
                lower=skill - spread,
                upper=skill + spread,
                episodes=32 if judges else 8,
                purpose=("CHALLENGE" if step % 4 == 0 else "CANDIDATE") if judges else "PROGRESS",
                checkpoint=f"agents/{name}/checkpoints/{step}-1/" if judges else "",
            )
        )
    scores = [each.lower for each in own if each.judges and each.lower is not None]
    agent = Agent(
        name=name,
        algorithm=algorithm,
        state="FAILED" if number == 4 else ("RETIRED" if number % 3 == 1 else "WAITING"),
        start=random.choice(_STARTS) if parent else "FRESH",
        parents=(parent.name,) if parent else (),
        replaced=agents[number - 5].name if parent else "",
        create_s=create_s,
        start_steps=start_steps,
        env_steps=own[-1].env_steps,
        cost_s=0.5 * ROUND_S * len(own),
        rung=len(own) // 2,
        score=max(scores) if scores else None,
        hyperparameters={
            "learning_rate": rate,
            "gamma": random.choice((0.95, 0.97, 0.99)),
            "horizon": 200,
        },
        reason="there is room" if parent is None else f"place 4 of 4; from {parent.name}",
        failure="diverged" if number == 4 else "",
    )
    return agent, own


def _events(now_s: float) -> tuple[Event, ...]:
    """Two pods that work a round after the other; the second one joins late, dies once, and leaves
    early."""
    found: list[tuple[float, str, str, str]] = [(0.0, "JOB_CREATED", "", "")]
    fence = 0
    for pod, first_s, last_s in (
        ("pendulum-0", 1.5, now_s),
        ("pendulum-1", 0.3 * now_s, 0.8 * now_s),
    ):
        start_s = first_s
        while start_s < last_s:
            fence += 1
            end_s = min(last_s, start_s + ROUND_S)
            died = pod == "pendulum-1" and fence % 4 == 3
            found.append((start_s, "LEASE_GRANTED", pod, str(fence)))
            found.append((end_s, "LEASE_EXPIRED" if died else "ROUND_COMPLETED", pod, str(fence)))
            if died:
                found.append((end_s, "POD_RESTARTED", pod, ""))
            start_s = end_s + (4.0 if died else 0.3)
    found.append((now_s, "JOB_SUCCEEDED", "", ""))
    found.sort(key=lambda each: each[0])
    return tuple(
        Event(
            position,
            kind,
            kind.lower().replace("_", " "),
            "pods" if pod else "",
            pod,
            time_s,
            {"fence": fence} if fence else {},
        )
        for position, (time_s, kind, pod, fence) in enumerate(found, 1)
    )
