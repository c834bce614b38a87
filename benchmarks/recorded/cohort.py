"""Trains one cohort of configurations, looks at it, and can stop in the middle and go on later."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch
from recorded.curves import Curve, Look
from recorded.tasks import EPISODES, LAST_EPISODES, LAST_LOOKS, LOOKS, Configuration, Task
from safetensors.torch import save_file

from podracer_core.algorithms import CohortConfig, MemberConfig, algorithm_class
from podracer_core.catalogue import find_algorithm
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.collect import Collector
from podracer_core.environments import batched_class, make_vec_environment
from podracer_core.evaluate import GreedyEvaluator
from podracer_core.random_numbers import COMPARISON, evaluation_seeds
from podracer_core.training import (
    member_environment_states,
    processor_seconds,
    resume_environments,
    usual_envs_per_member,
)

USUAL_COHORT = 8
"""Environments of a member are as many as in a job's cohort of this size, whatever the size
here."""


class CohortRecording:
    """The cohort of `chunk`, from its first step or from where `state_file` was saved.

    Its seconds are those of this process and its children, not the wall's, so other work on the
    machine hardly shows. They are divided by the number of members, as a job counts an agent's
    cost."""

    def __init__(self, task: Task, chunk: Sequence[Configuration], state_file: Path) -> None:
        self._task, self._chunk, self._file = task, chunk, state_file
        self._settings = [(each.number, each.settings(task)) for each in chunk]
        spec, (name,) = EnvironmentSpec(id=task.environment), {each.algorithm for each in chunk}
        info, members = find_algorithm(name), len(chunk)
        shared = {key: chunk[0].hyperparameters[key] for key in info.defaults("cohort", "network")}
        cohort = CohortConfig(name, tuple(_member(each) for each in chunk), shared)
        horizon = shared.get("horizon", 1)
        envs = usual_envs_per_member(name, spec, "cpu", USUAL_COHORT, horizon=horizon)
        make = functools.partial(make_vec_environment, spec, processes=1)
        self._environment, self._evaluator = make(members * envs), GreedyEvaluator(make)
        self._steps_an_update = horizon * envs
        spaces = self._environment.observation_space, self._environment.action_space
        self._algorithm = algorithm_class(name)(cohort, *spaces)
        self._clock = processor_seconds if batched_class(spec) is None else time.process_time
        self._looks: list[list[Look]] = [[] for _ in chunk]
        self._env_steps, self._trained_s, self._looked_s = 0, 0.0, 0.0
        saved = self._load()
        seeds, session = torch.tensor([each.seed for each in chunk]), self._env_steps
        taken = torch.full((members,), self._env_steps // envs)
        actor = self._algorithm.actor
        self._collector = Collector(
            self._environment, actor, seeds, first_step=taken, session=session
        )
        if saved:
            resume_environments(
                self._collector, [_group(saved, member, "environment") for member in range(members)]
            )

    @property
    def trained_s(self) -> float:
        """CPU seconds of training of each member so far."""
        return self._trained_s / len(self._chunk)

    def run(self, stop_at: float) -> list[Curve]:
        """The members' curves; none where `time.monotonic` has come to `stop_at` first: then the
        state is saved."""
        while True:
            while (
                due := len(self._looks[0])
            ) <= LOOKS and self.trained_s >= due * self._task.seconds / LOOKS:
                self._look(due)
            if due > LOOKS:
                break
            if time.monotonic() >= stop_at:
                self._save()
                return []
            begin = self._clock()
            rollout = self._collector.collect(
                self._algorithm.horizon, policy_version=self._algorithm.version
            )
            self._algorithm.update(rollout)
            self._trained_s += self._clock() - begin
            self._env_steps += self._steps_an_update
        self._file.unlink(missing_ok=True)
        return [self._curve(member) for member in range(len(self._chunk))]

    def close(self) -> None:
        """End the processes of the environments."""
        self._environment.close()
        self._evaluator.close()

    def _look(self, number: int) -> None:
        begin = self._clock()
        episodes = LAST_EPISODES if number > LOOKS - LAST_LOOKS else EPISODES
        # Other episodes at each look, the same ones for every configuration.
        seeds = evaluation_seeds(number, COMPARISON, episodes)
        results = self._evaluator.evaluate(self._algorithm.actor, seeds, block_rows=episodes)
        for looks, result in zip(self._looks, results, strict=True):
            looks.append(Look(self._env_steps, self.trained_s, result.returns))
        self._looked_s += self._clock() - begin

    def _curve(self, member: int) -> Curve:
        each, members = self._chunk[member], len(self._chunk)
        number, settings = self._settings[member]
        values = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in _told(each).items()
        }
        looks_s = round(self._looked_s / members, 3)
        return Curve(
            self._task.environment, number, settings, each.algorithm, values, members, looks_s,
            tuple(self._looks[member]),
        )  # fmt: skip

    def _save(self) -> None:
        tensors: dict[str, torch.Tensor] = {}
        for member, environment in enumerate(member_environment_states(self._collector)):
            groups = {**self._algorithm.member_state(member), "environment": environment}
            groups["replay"] = self._algorithm.replay_state(member)
            for group, named in groups.items():
                # a copy of each, since tensors of one memory are refused
                for name, tensor in named.items():
                    tensors[f"{member}:{group}:{name}"] = tensor.clone(
                        memory_format=torch.contiguous_format
                    )
        looks = [
            [(look.env_steps, look.seconds, look.returns) for look in looks]
            for looks in self._looks
        ]
        progress = {
            "settings": self._settings,
            "counts": (self._env_steps, self._trained_s, self._looked_s),
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        written = self._file.with_suffix(".new")
        save_file(tensors, written, {"progress": json.dumps({**progress, "looks": looks})})
        written.replace(self._file)

    def _load(self) -> dict[str, torch.Tensor]:
        """The saved tensors, with the algorithm's own loaded; none where the state is of another
        cohort."""
        if not self._file.exists():
            return {}
        with safetensors.safe_open(self._file, "pt") as opened:
            progress: dict[str, Any] = json.loads(opened.metadata()["progress"])
            if progress["settings"] != [list(pair) for pair in self._settings]:
                return {}
            saved = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 - it is no dict
        self._env_steps, self._trained_s, self._looked_s = progress["counts"]
        self._looks = [
            [Look(steps, s, tuple(returns)) for steps, s, returns in looks]
            for looks in progress["looks"]
        ]
        members = range(len(self._chunk))
        for member in members:
            own = {key.split(":")[1] for key in saved if key.startswith(f"{member}:")} - {
                "environment",
                "replay",
            }
            self._algorithm.load_member_state(
                member, {group: _group(saved, member, group) for group in own}
            )
        replays = [_group(saved, member, "replay") for member in members]
        if any(replays):
            self._algorithm.load_replay_states(replays)
        return saved


def _member(each: Configuration) -> MemberConfig:
    values = {
        name: float(each.hyperparameters[name])
        for name in find_algorithm(each.algorithm).defaults("member")
    }
    return MemberConfig(f"agent-{each.seed}", each.seed, values)


def _told(each: Configuration) -> dict[str, Any]:
    """The hyperparameters that are not the catalogue's defaults."""
    defaults = find_algorithm(each.algorithm).defaults()
    return {name: value for name, value in each.hyperparameters.items() if value != defaults[name]}


def _group(saved: dict[str, torch.Tensor], member: int, group: str) -> dict[str, torch.Tensor]:
    prefix = f"{member}:{group}:"
    return {
        key.removeprefix(prefix): tensor for key, tensor in saved.items() if key.startswith(prefix)
    }
