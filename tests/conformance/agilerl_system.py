"""AgileRL: DQN on random batches, its tournament, and mutations of the learning rate alone. All
live in one process."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import torch
from agilerl.algorithms import DQN
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from tensordict import TensorDict

from tests.conformance.learners import Passage, Snapshot, snapshot_of

BATCH, POPULATION = 16, 4


class System:
    """A tournament of twenty draws among four agents: the best wins."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "agent.pt")

    def close(self) -> None:
        pass

    def passages(self) -> dict[str, Passage]:
        """The last of the elite's copies, whose learning rate is mutated."""
        others = dict.fromkeys(
            ("no_mutation", "architecture", "new_layer_prob", "parameters", "activation"), 0
        )
        elite, chosen = _selected(_population())
        recipient = Mutations(**others, rl_hp=1, mutate_elite=False, rand_seed=0).mutation(chosen)[
            -1
        ]
        assert recipient.lr != elite.lr
        recipient.save_checkpoint(self._path)
        again = _agent(9)  # as a new process has it
        again.load_checkpoint(self._path)
        donor, own = _snapshot(_population()[-1]), _snapshot(recipient)
        agents = {
            "exploit": (donor, recipient),
            "restore": (own, DQN.load(self._path)),
            "resume": (own, again),
        }
        for _, agent in agents.values():
            _learn(agent, 1)
        return {
            name: Passage(before, _snapshot(agent), agent.lr, BATCH)
            for name, (before, agent) in agents.items()
        }

    def donors(self) -> tuple[Snapshot, Snapshot]:
        """The elite, and another copy of the best that no mutation has changed."""
        elite, (_, copy, *_) = _selected(_population())
        before = _snapshot(elite)
        _learn(copy, 1)
        return before, _snapshot(elite)

    def selection(self) -> tuple[list[float], list[float], list[float]]:
        population = _population()
        copied = [agent.fitness[-1] for agent in _selected(population)[1]]
        everyone = [agent.fitness[-1] for agent in population]
        return copied, [score for score in everyone if score not in copied], everyone

    def resumed(self) -> tuple[list[Snapshot], list[Snapshot]]:
        whole = _population()[0]
        whole.save_checkpoint(self._path)
        resumed = DQN.load(self._path)
        _learn(whole, 3)
        _learn(resumed, 3)
        return [_snapshot(whole)], [_snapshot(resumed)]


def _population() -> list[DQN]:
    torch.manual_seed(0)
    population = [_agent(number) for number in range(POPULATION)]
    for number, agent in enumerate(population):
        _learn(agent, 3)
        agent.fitness = [float(number)]
    return population


def _selected(population: list[DQN]) -> tuple[DQN, list[DQN]]:
    """The elite and the next population."""
    np.random.seed(0)  # the tournament draws from it
    elite, chosen, _ = TournamentSelection(20, elitism=True, population_size=POPULATION).select(
        population
    )
    return elite, chosen


def _agent(number: int) -> DQN:
    space, actions = gymnasium.spaces.Box(-1.0, 1.0, (4,)), gymnasium.spaces.Discrete(2)
    rates = HyperparameterConfig(lr=RLParameter(min=1e-5, max=1e-1))
    sizes = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}}
    return DQN(
        space, actions, index=number, hp_config=rates, net_config=sizes, lr=1e-3, batch_size=BATCH
    )


def _learn(agent: DQN, updates: int) -> None:
    numbers = torch.Generator().manual_seed(agent.steps)
    for _ in range(updates):
        parts = {name: torch.randn(BATCH, 4, generator=numbers) for name in ("obs", "next_obs")}
        parts |= {"reward": torch.randn(BATCH, 1, generator=numbers), "done": torch.zeros(BATCH, 1)}
        parts["action"] = torch.randint(2, (BATCH, 1), generator=numbers)
        agent.learn(TensorDict(parts, batch_size=[BATCH]))
        agent.steps += BATCH  # as its training loop counts


def _snapshot(agent: DQN) -> Snapshot:
    return snapshot_of(list(agent.actor.parameters()), agent.optimizer.optimizer, agent.steps)
