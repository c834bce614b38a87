"""Ray Tune's PopulationBasedTraining: two trials of eight weights each, which write down every
update.

Trial 0 leads until trial 1 has become its copy; then trial 1 leads. To perturb is to double:
nothing is left to chance."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from tests.conformance.learners import Passage, Snapshot, snapshot_of

INTERVAL, ITERATIONS = 2, 6
FAULT = 3
"""After this update of trial 1, between two decisions of PBT, its worker is killed or the run
interrupted."""

Record = dict[str, Any]


class Model(tune.Trainable):
    """Adam on random gradients. It sets its optimizer's rate after it has loaded a state, as Tune's
    examples do."""

    def setup(self, config: dict[str, Any]) -> None:
        self.number = int(self.trial_id[-1])
        self.weights = torch.nn.Parameter(torch.full((8,), float(self.number)))
        self.optimizer = torch.optim.Adam([self.weights], lr=config["rate"])
        self.random = torch.Generator().manual_seed(self.number)
        self.taken, self.score = 0, -float(self.number)
        self.loaded = -1  # the trial whose state was loaded since the last update

    def step(self) -> Record:
        before = snapshot_of([self.weights], self.optimizer, self.taken)
        self.weights.grad = torch.randn(8, generator=self.random)
        self.optimizer.step()
        self.taken += 1
        self.score += 10.0 if self.number and self.taken > INTERVAL else 1.0
        after = snapshot_of([self.weights], self.optimizer, self.iteration + 1)
        passage = [tuple(before), tuple(after), self.config["rate"], 1]
        told = {"trial": self.number, "taken": self.taken, "score": self.score}
        record = told | {"passage": passage, "loaded": self.loaded}
        torch.save(record, f"{self.config['folder']}/{time.time_ns()}.pt")
        self.loaded = -1
        return told

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        own = [self.weights.detach(), self.optimizer.state_dict(), self.random.get_state()]
        torch.save([*own, self.taken, self.score, self.number], f"{checkpoint_dir}/state.pt")

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        state = torch.load(f"{checkpoint_dir}/state.pt", weights_only=True)
        weights, optimizer, random, self.taken, self.score, self.loaded = state
        self.weights.data.copy_(weights)
        self.optimizer.load_state_dict(optimizer)
        self.optimizer.param_groups[0]["lr"] = self.config["rate"]
        self.random.set_state(random)


class Fault(tune.Callback):
    """In the run "killed" kill -9 of a worker, in "resumed" Ctrl-C; once."""

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: Record, **info: Any
    ) -> None:
        marker = Path(trial.config["folder"], "fault")
        due = (result["trial"], result["taken"]) == (1, FAULT) and not marker.exists()
        if due and marker.parent.name != "whole":
            marker.touch()
            killed = marker.parent.name == "killed"
            os.kill(*((result["pid"], signal.SIGKILL) if killed else (os.getpid(), signal.SIGINT)))


class System:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ray = tempfile.TemporaryDirectory(prefix="ray-")  # its sockets need a short path
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1")
        ray.init(
            num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1",
            object_store_memory=80 << 20, _temp_dir=self._ray.name, log_to_driver=False,
        )  # fmt: skip

    def close(self) -> None:
        ray.shutdown()
        self._ray.cleanup()

    def passages(self) -> dict[str, Passage]:
        """Of trial 1. It loads its own state when it has paused, and after a fault."""
        runs = (_run(self._folder / name) for name in ("whole", "killed", "resumed"))
        whole, killed, resumed = (
            [_passage(each) for each in run if (each["loaded"], each["trial"]) == (1, 1)]
            for run in runs
        )
        copy = next(
            each
            for each in _run(self._folder / "whole")
            if (each["loaded"], each["trial"]) == (0, 1)
        )
        exploit = _passage(copy)._replace(before=self.donors()[0])
        return {"exploit": exploit, "restore": whole[0], "move": killed[0], "resume": resumed[0]}

    def donors(self) -> tuple[Snapshot, Snapshot]:
        """Trial 0 when trial 1 becomes its copy, and when it goes on."""
        updates = {
            each["taken"]: _passage(each)
            for each in _run(self._folder / "whole")
            if each["trial"] == 0
        }
        return updates[INTERVAL].after, updates[INTERVAL + 1].before

    def selection(self) -> tuple[list[float], list[float], list[float]]:
        run = _run(self._folder / "whole")
        copy = next(each for each in run if each["loaded"] not in (-1, each["trial"]))
        scores = {each["trial"]: each["score"] for each in run if each["taken"] == INTERVAL}
        return [scores[copy["loaded"]]], [scores[copy["trial"]]], list(scores.values())

    def resumed(self) -> tuple[list[Snapshot], list[Snapshot]]:
        runs = _run(self._folder / "whole"), _run(self._folder / "resumed")
        whole, resumed = ({each["trial"]: _passage(each).after for each in run} for run in runs)
        return [whole[0], whole[1]], [resumed[0], resumed[1]]

    def agents_around_a_kill(self) -> tuple[set[int], set[int]]:
        return {0, 1}, {
            each["trial"] for each in _run(self._folder / "killed") if each["taken"] == ITERATIONS
        }


@cache
def _run(folder: Path) -> list[Record]:
    """The updates of a run in their order; its fault has the folder's name."""
    folder.mkdir()
    scheduler = PopulationBasedTraining(
        time_attr="taken", metric="score", mode="max", perturbation_interval=INTERVAL,
        quantile_fraction=0.5, resample_probability=0.0, perturbation_factors=(2.0, 2.0),
        synch=True, hyperparam_mutations={"rate": tune.loguniform(1e-5, 1.0)},
    )  # fmt: skip
    results = folder.parent / "results"
    tune.Tuner(
        Model,
        param_space={"folder": str(folder), "rate": tune.grid_search([1e-3, 3e-3])},
        # ends a run that waits for ever
        tune_config=tune.TuneConfig(scheduler=scheduler, time_budget_s=600),
        run_config=tune.RunConfig(
            name=folder.name, storage_path=str(results), stop={"training_iteration": ITERATIONS},
            verbose=0, failure_config=tune.FailureConfig(max_failures=2), callbacks=[Fault()],
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        ),
    ).fit()  # fmt: skip
    if folder.name == "resumed":
        tune.Tuner.restore(str(results / folder.name), trainable=Model, resume_errored=True).fit()
    return [torch.load(path, weights_only=True) for path in sorted(folder.glob("*.pt"))]


def _passage(record: Record) -> Passage:
    before, after, rate, counted = record["passage"]
    return Passage(Snapshot(*before), Snapshot(*after), rate, counted)
