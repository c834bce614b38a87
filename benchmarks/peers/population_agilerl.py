"""AgileRL's evolutionary training: a population of PPO agents on CartPole-v1, until one has reached
the target.

Its own `train_on_policy` with tournament selection and mutations. A look is taken before a rollout
of an agent whose recent training episodes are worth one, by the hook that AgileRL has for
collecting rollouts. It starts its environments anew with every generation of an agent, so a
generation has to be longer than an episode of 500 steps.

tutorial   the settings of its PPO tutorial: 16 environments, 10,000 steps a generation
short      8 environments, rollouts of 32 steps, 4,096 steps a generation: the first look comes
           sooner
same       the settings of our own job, for steps/s
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
import warnings
from collections import deque
from typing import Any

warnings.simplefilter("ignore")

import numpy as np  # noqa: E402 - warnings of what follows are silenced first
import torch  # noqa: E402
from agilerl.algorithms import PPO  # noqa: E402
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter  # noqa: E402
from agilerl.hpo.mutation import Mutations  # noqa: E402
from agilerl.hpo.tournament import TournamentSelection  # noqa: E402
from agilerl.rollouts import collect_rollouts  # noqa: E402
from agilerl.training.train_on_policy import train_on_policy  # noqa: E402
from agilerl.utils.utils import make_vect_envs  # noqa: E402
from lab.events import tell  # noqa: E402
from peers.greedy_cartpole import WORTH_A_LOOK, PopulationOrder, reaches_target  # noqa: E402

_NAMES = ("num_envs", "evo_steps", "learn_step", "batch_size", "lr", "update_epochs", "gamma",
          "gae_lambda", "ent_coef")  # fmt: skip
RECIPES = {
    "tutorial": (16, 10_000, 2048, 128, 1e-3, 4, 0.99, 0.95, 0.01),
    "short": (8, 4096, 256, 256, 2e-3, 8, 0.98, 0.8, 0.0),
    "same": (256, 131_072, 8192, 2048, 4e-3, 2, 0.99, 0.95, 0.0),
}
WIDTHS = {"tutorial": 64, "short": 64, "same": 32}
LEAST_EPISODES = 4


class _Over(Exception):
    pass


class WatchedRollouts:
    """AgileRL's own rollouts, with a look at the agent before one where its recent episodes are
    worth it.

    `speed_s`: no looks; after that many seconds the steps/s are told instead.
    """

    def __init__(self, seed: int, speed_s: float) -> None:
        self.env_steps = 0
        self._speed_s = speed_s
        self._start = self._told_at = time.perf_counter()
        self._looks = 10_000 * (seed + 1)
        self._recent: dict[int, deque[float]] = {}

    def __call__(self, agent, environments, n_steps, **kwargs):
        recent = self._recent.setdefault(id(agent), deque(maxlen=16))
        if self._speed_s:
            self._check_time()
        elif len(recent) >= LEAST_EPISODES and np.mean(recent) >= WORTH_A_LOOK:
            self._look(agent)
        found = collect_rollouts(agent, environments, n_steps, **kwargs)
        recent.extend(float(np.squeeze(score)) for score in found[0])
        self.env_steps += n_steps * environments.num_envs
        if time.perf_counter() - self._told_at >= 1.0:
            self._told_at = time.perf_counter()
            tell("steps", env_steps=self.env_steps)
        return found

    def _look(self, agent) -> None:
        @torch.no_grad()
        def policy(observation: np.ndarray) -> np.ndarray:
            latent = agent.actor.extract_features(agent.preprocess_observation(observation))
            return agent.actor.head_net.wrapped(latent).argmax(dim=-1).numpy()

        agent.set_training_mode(False)
        self._looks += 1
        if reaches_target(policy, self._looks):
            tell("reached", env_steps=self.env_steps)
            raise _Over
        agent.set_training_mode(True)

    def _check_time(self) -> None:
        elapsed_s = time.perf_counter() - self._start
        if elapsed_s >= self._speed_s:
            tell("speed", env_steps_per_second=self.env_steps / elapsed_s)
            raise _Over


def main() -> None:
    order = PopulationOrder(**json.loads(sys.argv[1]))
    torch.set_num_threads(order.threads)
    random.seed(order.seed)
    np.random.seed(order.seed)
    torch.manual_seed(order.seed)
    recipe: dict[str, Any] = dict(zip(_NAMES, RECIPES[order.recipe], strict=True))
    width = WIDTHS[order.recipe]
    layer = {"hidden_size": [width]}
    evo_steps, num_envs = recipe.pop("evo_steps"), recipe["num_envs"]
    environments = make_vect_envs("CartPole-v1", num_envs=num_envs, should_async_vector=False)
    population = PPO.population(
        size=order.population,
        observation_space=environments.single_observation_space,
        action_space=environments.single_action_space,
        hp_config=HyperparameterConfig(
            lr=RLParameter(min=1e-4, max=1e-2),
            batch_size=RLParameter(min=32, max=2048, dtype=int),
            learn_step=RLParameter(
                min=256, max=8192, dtype=int, grow_factor=1.5, shrink_factor=0.75
            ),
        ),
        net_config={"latent_dim": width, "encoder_config": layer, "head_config": layer},
        **recipe,
    )
    tell("training")
    with contextlib.suppress(_Over):
        train_on_policy(
            environments,
            "CartPole-v1",
            "PPO",
            population,
            max_steps=1_000_000_000,
            evo_steps=evo_steps,
            eval_loop=1,
            selection_strategy=TournamentSelection(2, True, order.population),
            # layers break it
            mutation=Mutations(0.6, 0.0, 0.0, 0.2, 0.0, 0.2, 0.1, rand_seed=order.seed),
            verbose=False,
            collect_rollouts_fn=WatchedRollouts(order.seed, order.speed_s),
        )


if __name__ == "__main__":
    main()
