"""Ray Tune's PopulationBasedTraining: two trials of eight weights each, which write down every update.

Trial 0 leads until trial 1 has become its copy; then trial 1 leads. To perturb is to double: nothing is left to chance.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from tests.conformance.learners import Passage, Snapshot, snapshot_of

INTERVAL, ITERATIONS = 2, 8
KILL_AT, INTERRUPT_AT = 5, 7
"""Updates of trial 1: in one its worker is killed, after the other the run is interrupted."""


class Model(tune.Trainable):
    """Adam on random gradients."""

    def setup(self, config: dict[str, Any]) -> None:
        self.number, self.folder = int(self.trial_id[-1]), Path(config["folder"])
        self.weights = torch.nn.Parameter(torch.full((8,), float(self.number)))
        self.optimizer = torch.optim.Adam([self.weights], lr=config["rate"])
        self.random = torch.Generator().manual_seed(self.number)
        self.state: dict[str, Any] = {"taken": 0, "score": -float(self.number)}
        self.loaded: int | None = None  # the trial whose state was loaded since the last update

    def step(self) -> dict[str, Any]:
        before = snapshot_of([self.weights], self.optimizer, self.state["taken"])
        self.weights.grad = torch.randn(8, generator=self.random)
        self.optimizer.step()
        self.state["taken"] += 1
        self.state["score"] += 10.0 if self.number and self.state["taken"] > INTERVAL else 1.0
        after = snapshot_of([self.weights], self.optimizer, self.iteration + 1)
        record = {"trial": self.number, "before": tuple(before), "after": tuple(after), "rate": self.config["rate"]}
        torch.save(record | self.state | {"loaded": self.loaded}, self.folder / f"{time.time_ns()}.pt")
        self.loaded = None
        if self.number and self.state["taken"] == self.config["kill_at"] and _first_time(self.folder / "killed"):
            os._exit(1)
        return {"score": self.config["sign"] * self.state["score"], "taken": self.state["taken"]}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        state = {"weights": self.weights.detach(), "optimizer": self.optimizer.state_dict(), "trial": self.number}
        torch.save(state | {"random": self.random.get_state(), "state": self.state}, f"{checkpoint_dir}/state.pt")

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        state = torch.load(f"{checkpoint_dir}/state.pt", weights_only=True)
        self.weights.data.copy_(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.config["applies_rate"]:
            self.optimizer.param_groups[0]["lr"] = self.config["rate"]
        self.random.set_state(state["random"])
        self.state, self.loaded = state["state"], state["trial"]


class Interrupt(tune.Callback):
    """Ctrl-C."""

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        folder = Path(trial.config["folder"])
        if trial.trial_id[-1] == "1" and result["taken"] == INTERRUPT_AT and _first_time(folder / "interrupted"):
            os.kill(os.getpid(), signal.SIGINT)


class System:
    """As "ray_tune" the trainable sets its optimizer's rate after it has loaded a state, as Tune's examples do; as
    "ray_tune_plain" it loads the state as torch does."""

    modes = ("max", "min")

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._applies_rate = folder, name == "ray_tune"
        self._ray = tempfile.TemporaryDirectory(prefix="ray-")  # its sockets need a short path
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1")
        ray.init(
            num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1", object_store_memory=80 << 20,
            _temp_dir=self._ray.name, log_to_driver=False,
        )  # fmt: skip

    def close(self) -> None:
        ray.shutdown()
        self._ray.cleanup()

    def passages(self) -> dict[str, Passage]:
        records, resumed_at = self._faulty
        found: dict[str, Passage] = {}
        seen: list[int] = []
        for place, record in enumerate(records):
            if record["trial"] == 1 and record["loaded"] is not None:
                occasion = "exploit" if record["loaded"] == 0 else "restore"
                occasion = "move" if record["taken"] == KILL_AT in seen else occasion
                occasion = "resume" if place >= resumed_at else occasion
                before, after = Snapshot(*record["before"]), Snapshot(*record["after"])
                found.setdefault(occasion, Passage(before, after, record["rate"], 1))
            seen += [record["taken"]] if record["trial"] == 1 else []
        return found

    def exploited(self) -> tuple[Snapshot, Snapshot]:
        donor, recipient, _ = _first_exploit(self._faulty[0])
        return Snapshot(*donor["after"]), Snapshot(*recipient["before"])

    def selection(self, mode: str) -> tuple[list[float], list[float], list[float]]:
        sign = 1 if mode == "max" else -1
        records = self._faulty[0] if sign > 0 else self._run("min", sign=-1, iterations=INTERVAL + 1)
        donor, _, replaced = _first_exploit(records)
        copied, gone = [sign * donor["score"]], [sign * replaced["score"]]
        return copied, gone, copied + gone

    def resumed(self) -> tuple[list[Snapshot], list[Snapshot]]:
        ends = [{each["trial"]: each["after"] for each in run} for run in (self._run("whole"), self._faulty[0])]
        whole, faulty = ([Snapshot(*end[trial]) for trial in sorted(end)] for end in ends)
        return whole, faulty

    def agents_around_a_kill(self) -> tuple[set[str], set[str]]:
        records, _ = self._faulty
        return {"0", "1"}, {str(each["trial"]) for each in records if each["taken"] == ITERATIONS}

    @cached_property
    def _faulty(self) -> tuple[list[dict[str, Any]], int]:
        """A run with a killed worker, that is interrupted and resumed; how many records came before that."""
        before = len(self._run("faulty", kill_at=KILL_AT, callbacks=[Interrupt()]))
        path = str(self._folder / "results" / "faulty")
        tune.Tuner.restore(path, trainable=Model, resume_errored=True).fit()
        return _read(self._folder / "faulty"), before

    def _run(
        self, name: str, *, sign: int = 1, kill_at: int = 0, iterations: int = ITERATIONS, callbacks: Any = ()
    ) -> list[dict[str, Any]]:
        folder = self._folder / name
        folder.mkdir()
        scheduler = PopulationBasedTraining(
            time_attr="taken", metric="score", mode="max" if sign > 0 else "min", perturbation_interval=INTERVAL,
            quantile_fraction=0.5, resample_probability=0.0, perturbation_factors=(2.0, 2.0), synch=True,
            hyperparam_mutations={"rate": tune.loguniform(1e-5, 1.0)},
        )  # fmt: skip
        own = {"folder": str(folder), "sign": sign, "kill_at": kill_at, "applies_rate": self._applies_rate}
        tuner = tune.Tuner(
            Model,
            param_space=own | {"rate": tune.grid_search([1e-3, 3e-3])},
            tune_config=tune.TuneConfig(scheduler=scheduler),
            run_config=tune.RunConfig(
                name=name, storage_path=str(self._folder / "results"), stop={"training_iteration": iterations},
                failure_config=tune.FailureConfig(max_failures=2), callbacks=list(callbacks), verbose=0,
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
            ),
        )  # fmt: skip
        tuner.fit()
        return _read(folder)


def _read(folder: Path) -> list[dict[str, Any]]:
    """The records in the order of their updates."""
    return [torch.load(path, weights_only=True) for path in sorted(folder.glob("*.pt"))]


def _first_time(marker: Path) -> bool:
    is_first = not marker.exists()
    marker.touch()
    return is_first


def _first_exploit(records: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The donor's last record before it, the recipient's first after it, and its last before it."""
    recipient = next(each for each in records if each["loaded"] not in (None, each["trial"]))
    ended = {each["trial"]: each for each in records if each["taken"] == recipient["taken"] - 1}
    return ended[recipient["loaded"]], recipient, ended[recipient["trial"]]
