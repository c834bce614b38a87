"""A job as frozen dataclasses: the same words as in a job file (DESIGN §11), defaults filled in.

Building one checks nothing but types; `podracer_core.jobs.validation.validate` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.catalogue.environments.spec import StoredFile
from podracer_core.catalogue.hyperparameters import HyperparameterValue
from podracer_core.config import ByteSize, Seconds


@dataclass(frozen=True)
class NamedDataSet:
    """A data set of the project, by its name: whatever that stands for when the job is created.

    file   what it stood for; None where no server has looked yet. Two that have the same name are equal
    """

    name: str
    file: StoredFile | None = field(default=None, compare=False)


DataSets = Mapping[str, str | StoredFile | NamedDataSet]
"""Data sets by argument of the environment's constructor: paths of files here, uploaded files in the store, or names.

In a job file a path, or `{data_set: NAME}`.
"""


@dataclass(frozen=True)
class Objective:
    """When to stop: at whichever comes first. A target, or one of the limits, is required.

    target_return   return to reach
    statistic       what has to reach it: the lower end of the mean's 95 % interval, or the mean itself
    max_env_steps   environment steps of all agents together
    max_duration    active time, in seconds; pauses do not count
    max_cost        device seconds, evaluation included: of the pods' processors, or of their GPUs
    """

    target_return: float | None = None
    statistic: Literal["lower_bound", "mean"] = "lower_bound"
    max_env_steps: int | None = None
    max_duration: Seconds | None = None
    max_cost: Seconds | None = None


@dataclass(frozen=True)
class Uniform:
    """Evenly between low and high."""

    low: float
    high: float


@dataclass(frozen=True)
class LogUniform:
    """Evenly in the logarithm; both ends are above 0."""

    low: float
    high: float


@dataclass(frozen=True)
class IntegerUniform:
    """Whole numbers, both ends included; `log`: evenly in the logarithm."""

    low: int
    high: int
    log: bool = False


@dataclass(frozen=True)
class Choice:
    """One of these."""

    values: tuple[HyperparameterValue, ...]


@dataclass(frozen=True)
class Fixed:
    """Not searched: this value. In a job file a bare value means it."""

    value: HyperparameterValue


Range = Uniform | LogUniform | IntegerUniform | Choice | Fixed


@dataclass(frozen=True)
class Dimension:
    """Where one hyperparameter is searched; `algorithm` is empty where it is meant for every one that has it.

    In a job file the key is `gamma`, or `ppo.gamma` for one algorithm.
    """

    hyperparameter: str
    range: Range
    algorithm: str = ""

    @property
    def key(self) -> str:
        """Its key in a job file."""
        return f"{self.algorithm}.{self.hyperparameter}" if self.algorithm else self.hyperparameter


@dataclass(frozen=True)
class AlgorithmShare:
    """An algorithm and its share of fresh agents, relative to the others'."""

    algorithm: str
    share: float = 1.0


@dataclass(frozen=True)
class Search:
    """What to search.

    algorithms   none: `auto`, every one that can act in the environment
    space        none: the algorithms' own search ranges; else what is not named keeps its default
    """

    algorithms: tuple[AlgorithmShare, ...] = ()
    space: tuple[Dimension, ...] = ()


@dataclass(frozen=True)
class Round:
    """How long a cohort trains before its members are judged: seconds of the pod, or environment steps of one agent."""

    seconds: Seconds | None = None
    env_steps: int | None = None


@dataclass(frozen=True)
class Evolution:
    """How agents compete and how new ones are made (DESIGN §8).

    population          agents alive at a time
    leaderboard_size    places on the leaderboard, at most the population; None: 4, or the population if smaller
    tournament_size     candidates among which a tournament selection picks the best
    replaced_fraction   part of a rung, from the bottom, that may be replaced
    exploration         probability of a fresh agent in place of an exploited one
    lineage_limit       places that one lineage may hold; None: half of the leaderboard, rounded up
    keep_replay         checkpoints of off-policy agents always hold their transitions, which children inherit; if
                        not, only those of an agent that has up to 16 MiB of them, where the object store is a folder
    selection           how the parent of an exploited agent is selected
    crossover           probability that a child is fused from two parents of one shape
    noise_scale         standard deviation of the noise on a child's parameters, relative to each tensor's own
    generator, updater  names of extensions; None: the scheduler's own, the objective's statistic
    generations         of the generational scheduler; None: until the budget ends
    adaptive_rounds     longer rounds for agents that improve, an early end for hopeless ones; None: in a tournament of
                        several algorithms
    ensemble_size       best candidates that also act together at the end; 0: none
    """

    scheduler: Literal["tournament", "generational"] = "tournament"
    population: int = 8
    leaderboard_size: int | None = None
    round: Round = field(default_factory=lambda: Round(seconds=15.0))
    tournament_size: int = 2
    replaced_fraction: float = 0.25
    exploration: float = 0.1
    lineage_limit: int | None = None
    keep_replay: bool = False
    selection: Literal["tournament", "truncation"] = "tournament"
    crossover: float = 0.0
    noise_scale: float = 0.0
    generator: str | None = None
    updater: str | None = None
    generations: int | None = None
    adaptive_rounds: bool | None = None
    ensemble_size: int = 0

    @property
    def places(self) -> int:
        """`leaderboard_size`, the default filled in."""
        return self.leaderboard_size or min(4, self.population)


@dataclass(frozen=True)
class PodCount:
    """How many pods may work for the job; `max` is `min` unless set."""

    min: int = 1
    max: int | None = None

    @property
    def most(self) -> int:
        """`max`, or `min` where it is not set."""
        return self.min if self.max is None else self.max


@dataclass(frozen=True)
class Resources:
    """What one pod needs; None: automatic. cpu in cores, memory in bytes, gpu in devices."""

    cpu: float | None = None
    memory: ByteSize | None = None
    gpu: int = 0


@dataclass(frozen=True)
class Fusion:
    """How the learners of an agent become one.

    name           `mean`, `weighted` (by samples), `outer` (an outer optimizer), or an installed package's
    interval       updates between two fusions; None: an epoch's
    quorum         learners, the lead among them, that must have answered; None: more than half
    deadline       how long the others are waited for, in seconds
    learning_rate  step size of the outer optimizer; None: 1
    momentum       of the outer optimizer; None: 0
    """

    name: str = "mean"
    interval: int | None = None
    quorum: int | None = None
    deadline: Seconds = 10.0
    learning_rate: float | None = None
    momentum: float | None = None


@dataclass(frozen=True)
class Pod:
    """The pods that work for the job.

    count           with several learners: of teams, each of as many pods
    members         agents that a pod trains at once; None: `auto`
    envs_per_member environments of each; None: `auto`
    learners        learners of each agent, each in a pod of its own
    workers         of each pod, in the split layout
    layout          split: processes of their own; fused: the learner does all; auto: fused for built-in environments
    deterministic   lock-step, for bit-exact resume in the split layout too
    fusion          how several learners become one; None: the mean, once an epoch
    """

    count: PodCount = field(default_factory=PodCount)
    members: int | None = None
    envs_per_member: int | None = None
    learners: int = 1
    workers: int = 1
    layout: Literal["auto", "split", "fused"] = "auto"
    resources: Resources = field(default_factory=Resources)
    deterministic: bool = False
    fusion: Fusion | None = None


@dataclass(frozen=True)
class EvaluationPlan:
    """How candidates are judged: by the returns of this many greedy episodes."""

    episodes: int = 32


@dataclass(frozen=True)
class Continuous:
    """Retraining: the job makes another one, a generation, whenever its data have changed or the interval has passed.

    data_set   argument (a key of `data`) whose data set is watched; None: all that are given by name
    interval   between the beginnings of two generations, in seconds; None: only on change
    alias      what the champion is called
    contest    arguments of the environment in which champion and challenger are compared, in place of the job's own
    margin     by how much the challenger's mean has to be above the champion's
    """

    data_set: str | None = None
    interval: Seconds | None = None
    alias: str = "champion"
    contest: Mapping[str, Any] = field(default_factory=dict)
    margin: float = 0.0


@dataclass(frozen=True)
class Retrain:
    """Once training is over: the best candidate is trained once more, and is the job's policy then.

    kwargs     arguments of the environment in place of the job's own: the days by which it was selected, too, say
    env_steps  environment steps of it; None: as many as the candidate has taken
    scratch    from new weights, with the candidate's algorithm and hyperparameters; else from the candidate's
    """

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    env_steps: int | None = None
    scratch: bool = False


@dataclass(frozen=True)
class WarmStart:
    """The best `candidates` of another job's leaderboard, which the first agents start from."""

    job: str
    candidates: int = 1


@dataclass(frozen=True)
class Founder:
    """An agent of another job that a new one starts from: its checkpoint, and what it was trained with."""

    agent: str
    prefix: str
    manifest_sha256: str
    algorithm: str
    hyperparameters: Mapping[str, HyperparameterValue] = field(default_factory=dict)


Beginnings = WarmStart | tuple[Founder, ...]
"""What the first agents start from: as it is asked for, or once the other job's leaderboard has answered."""


@dataclass(frozen=True)
class JobSpec:
    """What a user asks for.

    name         a DNS label: lower-case letters, digits and `-`
    seed         of everything
    weight       share of a pool that several jobs use, relative to the others
    data         what the environment's constructor gets as paths, besides `environment.kwargs`
    labels       free words for the user's own use
    continuous   present: the job trains nothing itself, but makes one that does whenever its data change
    warm_start   agents of another job that the first ones start from
    retrain      present: the best candidate is trained once more before the job ends
    """

    name: str
    environment: EnvironmentSpec
    objective: Objective
    search: Search = field(default_factory=Search)
    evolution: Evolution = field(default_factory=Evolution)
    pod: Pod = field(default_factory=Pod)
    evaluation: EvaluationPlan = field(default_factory=EvaluationPlan)
    seed: int = 0
    weight: float = 1.0
    data: DataSets = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    continuous: Continuous | None = None
    warm_start: Beginnings = ()
    retrain: Retrain | None = None
