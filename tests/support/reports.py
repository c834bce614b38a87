"""Made-up jobs for reports: a population that learns, breeds and fails as jobs do, of any size,
without chance."""

from __future__ import annotations

import math
from random import Random

from google.protobuf.timestamp_pb2 import Timestamp

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_client.jobs import Agent, Evaluation, Event, History

ALGORITHMS = ("ppo", "sac", "td3")
ROUND_S = 10.0
_STARTS = ("COPY", "COPY", "NOISE", "FUSE")


ORIGIN = Timestamp(seconds=1795262400)
"""2026-11-21, 12 o'clock."""
NAME = "projects/default/jobs/pendulum-x7"
_RATE = evolution_pb2.Dimension(hyperparameter="learning_rate")
_RATE.log_uniform.low, _RATE.log_uniform.high = 1e-4, 1e-2


def made_up_job(**fields: object) -> job_pb2.Job:
    """A job that was accepted; with the given fields besides or instead."""
    objective = evolution_pb2.Objective(target_return=-200.0, max_env_steps=2_000_000)
    objective.max_duration.seconds, objective.max_cost.seconds = 600, 900
    spec = job_pb2.JobSpec(
        environment=environment_pb2.EnvironmentSpec(id="Pendulum-v1"),
        objective=objective,
        search=evolution_pb2.Search(space=[_RATE]),
    )
    job = job_pb2.Job(
        name=NAME, uid="4f2a", create_time=ORIGIN, state=job_pb2.JOB_STATE_PENDING, spec=spec
    )
    return changed(job, **fields)


def changed(job: job_pb2.Job, **fields: object) -> job_pb2.Job:
    """A copy of the job with other fields; those of its progress and its labels as well."""
    found = job_pb2.Job()
    found.CopyFrom(job)
    for name, value in fields.items():
        if name == "labels":
            found.spec.labels.update(value)  # type: ignore[arg-type]
        elif name in job_pb2.JobProgress.DESCRIPTOR.fields_by_name:
            _set(found.progress, name, value)
        else:
            _set(found, name, value)
    return found


def _set(message: object, name: str, value: object) -> None:
    if name.endswith(("_time", "_to_target")) and isinstance(value, float):
        since = ORIGIN.ToNanoseconds() if name in ("start_time", "end_time") else 0
        getattr(message, name).FromNanoseconds(since + round(value * 1e9))
    elif name.endswith("cost") and isinstance(value, float):
        getattr(message, name).FromNanoseconds(round(value * 1e9))
    elif isinstance(value, (str, int, float)):
        setattr(message, name, value)
    else:
        getattr(message, name).CopyFrom(value)


def empty_report(**fields: object) -> History:
    """A job that was accepted, and of which nothing more is known; with the given fields."""
    return History(made_up_job(**fields))


def failed_report() -> History:
    """Its environment raised before any agent was made; every text in it tries to be HTML."""
    job = made_up_job(
        state=job_pb2.JOB_STATE_FAILED,
        end_time=2.0,
        labels={"note": "<i>mine</i>"},
        problem=cohort_pb2.Problem(
            reason="USER_CODE_FAILED",
            message="<b>it</b> raised & ended",
            detail='File "<string>"\n</pre><script>alert(1)</script>',
        ),
    )
    job.spec.environment.id = "<img src=x onerror=alert(1)>"
    return History(
        job, events=(Event(1, "JOB_FAILED", "<script>alert(2)</script>", "", "", 2.0, {}),)
    )


def message_of(evaluation: Evaluation) -> agent_pb2.Evaluation:
    """The message of a made-up evaluation."""
    message = agent_pb2.Evaluation(
        agent=f"{NAME}/agents/{evaluation.agent}",
        env_steps=evaluation.env_steps,
        mean=evaluation.mean,
        lower_bound=evaluation.lower or 0.0,
        upper_bound=evaluation.upper or 0.0,
        returns=[evaluation.mean] * evaluation.episodes,
        purpose=agent_pb2.EvaluationPurpose.Value(f"EVALUATION_PURPOSE_{evaluation.purpose}"),
    )
    message.checkpoint.prefix = evaluation.checkpoint
    message.create_time.FromNanoseconds(
        ORIGIN.ToNanoseconds() + round((evaluation.time_s or 0.0) * 1e9)
    )
    message.train_time.FromNanoseconds(round(evaluation.train_s * 1e9))
    return message


def made_up_report(
    agent_count: int = 12, rounds: int = 6, *, seed: int = 0, ended: bool = True
) -> History:
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
    ranked = sorted(
        {each.agent: each for each in reversed(best_first)}.values(),
        key=lambda each: -(each.lower or 0.0),
    )
    now_s = max((each.time_s or 0.0 for each in evaluations), default=0.0)
    best = best_first[0] if best_first else None
    reached = best is not None and best.lower is not None and best.lower >= -200.0
    ending = {
        "state": job_pb2.JOB_STATE_SUCCEEDED if ended else job_pb2.JOB_STATE_RUNNING,
        **(
            {
                "outcome": job_pb2.JOB_OUTCOME_TARGET_REACHED
                if reached
                else job_pb2.JOB_OUTCOME_BUDGET_USED
            }
            if ended
            else {}
        ),
        **({"end_time": now_s} if ended else {}),
        **({"time_to_target": now_s - 1.5} if reached and ended else {}),
        **({"best": message_of(best), "best_score": best.lower} if best else {}),
    }
    board = leaderboard_pb2.Leaderboard(
        candidates=[
            leaderboard_pb2.Candidate(
                rank=rank,
                agent=leaderboard_pb2.Agent(name=f"{NAME}/agents/{each.agent}"),
                score=each.lower or 0.0,
                evaluation=message_of(each),
                confirmed=each.purpose == "CHALLENGE",
            )
            for rank, each in enumerate(ranked[:4], 1)
        ]
    )
    job = made_up_job(
        start_time=1.5,
        env_steps=sum(agent.env_steps - agent.start_steps for agent in agents),
        train_time=now_s - 1.5,
        cost=1.9 * now_s,
        evaluation_cost=0.3 * now_s,
        agent_count=agent_count,
        completed_rounds=rounds,
        **ending,
    )
    return History(
        job, (), board, tuple(agents), tuple(evaluations), len(evaluations), _events(now_s)
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
