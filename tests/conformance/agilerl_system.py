"""AgileRL: DQN on random batches, its tournament, and mutations of the learning rate alone. All live in one process."""

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

    modes = ("max",)

    def __init__(self, folder: Path, name: str) -> None:
        torch.manual_seed(0)
        np.random.seed(0)  # the tournament draws from it
        self._path = str(folder / "agent.pt")
        self._tournament = TournamentSelection(20, elitism=True, population_size=POPULATION)

    def close(self) -> None:
        pass

    def passages(self) -> dict[str, Passage]:
        _, recipient = self._exploit()
        recipient.save_checkpoint(self._path)
        again = _agent(9)  # as a new process has it
        again.load_checkpoint(self._path)
        agents = {"exploit": recipient, "restore": DQN.load(self._path), "resume": again}
        counter = recipient.steps
        return {occasion: _learn_once(agent, counter) for occasion, agent in agents.items()}

    def exploited(self) -> tuple[Snapshot, Snapshot]:
        donor, recipient = self._exploit()
        return _snapshot(donor), _snapshot(recipient)

    def selection(self, mode: str) -> tuple[list[float], list[float], list[float]]:
        """Weights tell whose copy an agent is."""
        population = _population()
        scores = {agent.fitness[-1]: _snapshot(agent).weights for agent in population}
        chosen = [_snapshot(agent).weights for agent in self._tournament.select(population)[1]]
        copied = [score for weights in chosen for score, own in scores.items() if torch.equal(weights, own)]
        return copied, [score for score in scores if score not in copied], list(scores)

    def resumed(self) -> tuple[list[Snapshot], list[Snapshot]]:
        whole = _agent(0)
        for step in range(6):
            if step == 3:
                whole.save_checkpoint(self._path)
            whole.learn(_batch(step))
        resumed = DQN.load(self._path)
        for step in range(3, 6):
            resumed.learn(_batch(step))
        return [_snapshot(whole)], [_snapshot(resumed)]

    def _exploit(self) -> tuple[DQN, DQN]:
        """The best agent, and a copy of it whose learning rate is mutated."""
        elite, chosen, _ = self._tournament.select(_population())
        others = dict.fromkeys(("no_mutation", "architecture", "new_layer_prob", "parameters", "activation"), 0)
        recipient = Mutations(**others, rl_hp=1, mutate_elite=False, rand_seed=0).mutation(chosen)[-1]
        assert recipient.lr != elite.lr
        return elite, recipient


def _population() -> list[DQN]:
    population = [_agent(number) for number in range(POPULATION)]
    for number, agent in enumerate(population):
        for step in range(3):
            agent.learn(_batch(10 * number + step))
            agent.steps += BATCH  # as its training loop counts
        agent.fitness = [float(number)]
    return population


def _agent(number: int) -> DQN:
    space, actions = gymnasium.spaces.Box(-1.0, 1.0, (4,)), gymnasium.spaces.Discrete(2)
    rates = HyperparameterConfig(lr=RLParameter(min=1e-5, max=1e-1))
    sizes = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}}
    return DQN(space, actions, index=number, hp_config=rates, net_config=sizes, lr=1e-3, batch_size=BATCH)


def _batch(seed: int) -> TensorDict:
    numbers = torch.Generator().manual_seed(seed)
    parts = {name: torch.randn(BATCH, 4, generator=numbers) for name in ("obs", "next_obs")}
    parts |= {"reward": torch.randn(BATCH, 1, generator=numbers), "done": torch.zeros(BATCH, 1)}
    parts["action"] = torch.randint(2, (BATCH, 1), generator=numbers)
    return TensorDict(parts, batch_size=[BATCH])


def _learn_once(agent: DQN, counter: int) -> Passage:
    before = _snapshot(agent)._replace(counter=counter)
    agent.learn(_batch(99))
    agent.steps += BATCH
    return Passage(before, _snapshot(agent), agent.lr, BATCH)


def _snapshot(agent: DQN) -> Snapshot:
    return snapshot_of(list(agent.actor.parameters()), agent.optimizer.optimizer, agent.steps)
