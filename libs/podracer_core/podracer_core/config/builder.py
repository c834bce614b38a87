"""What a file says, as a tree of nodes with line numbers -> frozen dataclasses, with every mistake
reported at its line. Names of other libraries, and what they are called here:
docs/coming-from.md explains them."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from podracer_core.config.scalars import alternatives, expected, from_yaml, unit_of
from podracer_core.errors import FieldViolation, InvalidInput

_STACK = "stack frames with a wrapper: gymnasium.wrappers.FrameStackObservation"
_SCHEDULE = "learning_rate_schedule"

_COUNTERPARTS: Mapping[str, Mapping[str, str]] = {
    "Stable-Baselines3": {
        "n_steps": "horizon", "batch_size": "minibatch_size", "n_epochs": "epochs",
        "policy_kwargs": "hidden_sizes", "ent_coef": "entropy_coefficient or learn_temperature",
        "vf_coef": "value_coefficient", "max_grad_norm": "max_gradient_norm",
        "net_arch": "hidden_sizes", "buffer_size": "replay_capacity", "tau": "target_rate",
        "target_update_interval": "target_interval", "train_freq": "updates_per_step",
        "gradient_steps": "updates_per_step", "exploration_final_eps": "final_exploration",
        "exploration_fraction": "exploration_steps", "action_noise": "noise_scale",
        "total_timesteps": "steps or objective.max_env_steps",
        "n_timesteps": "steps or objective.max_env_steps",
        "n_envs": "envs_per_member or pod.envs_per_member",
        "env_kwargs": "environment_arguments or environment.kwargs",
        "n_eval_episodes": "episodes or evaluation.episodes", "progress_bar": "progress",
        "verbose": "progress", "reward_threshold": "target or objective.target_return",
    },
    "RLlib": {
        "lr": "learning_rate", "lambda": "gae_lambda", "lambda_": "gae_lambda",
        "clip_param": "clip_range", "num_epochs": "epochs", "rollout_fragment_length": "horizon",
        "entropy_coeff": "entropy_coefficient", "vf_loss_coeff": "value_coefficient",
        "grad_clip": "max_gradient_norm", "fcnet_hiddens": "hidden_sizes", "env": "environment",
        "env_config": "environment_arguments or environment.kwargs", "num_workers": "pod.workers",
        "num_env_runners": "pod.workers", "num_learners": "pod.learners",
        "num_envs_per_env_runner": "envs_per_member or pod.envs_per_member", "num_gpus": "device",
    },
    "CleanRL": {
        "num_steps": "horizon", "update_epochs": "epochs", "clip_coef": "clip_range",
        "anneal_lr": _SCHEDULE, "policy_lr": "learning_rate", "q_lr": "learning_rate",
        "alpha": "initial_temperature", "env_id": "environment",
        "num_envs": "envs_per_member or pod.envs_per_member",
    },
    "Ray Tune": {
        "num_samples": "members or evolution.population",
        "param_space": "hyperparameters or search.space", "loguniform": "log_uniform",
        "randint": "integer_uniform", "grid_search": "choice",
        "time_budget_s": "seconds or objective.max_duration",
    },
    "ElegantRL": {
        "net_dims": "hidden_sizes", "horizon_len": "horizon",
        "repeat_times": "epochs or updates_per_step", "soft_update_tau": "target_rate",
        "break_step": "steps or objective.max_env_steps",
    },
    "AgileRL": {"pop_size": "members or evolution.population",
                "max_steps": "steps or objective.max_env_steps"},
    "other libraries": {
        "warm_start": "start", "resume": "start or warm_start", "init": "start or warm_start",
        "checkpoint": "start or warm_start", "discount": "gamma",
    },
}  # fmt: skip

_SENTENCES: Mapping[str, str] = {
    "use_sde": "there is no state-dependent exploration; `initial_log_std` sets the first noise of "
    "ppo and a2c",
    "frame_stack": _STACK,
    "policy": "the network follows from the spaces: convolutions for images, else layers of "
    "`hidden_sizes`",
    "train_batch_size": "a batch of one member is `horizon` times `envs_per_member`",
    "num_minibatches": "`minibatch_size` is a number of transitions, not of minibatches",
    "model": "`start` is a result or a path to go on from; the network follows from the spaces",
    **dict.fromkeys(
        ("lstm_hidden_size", "use_lstm", "recurrentppo"),
        f"there are no recurrent policies; {_STACK}",
    ),
    "maskableppo": "ppo and the value-based algorithms obey the environment's `action_masks()` or "
    "info['action_mask']",
    "her": "there is no hindsight replay: an off-policy algorithm such as sac learns from the "
    "reward alone",
    "tqc": "it is not here; crossq and redq are near for continuous actions, qr_dqn for discrete "
    "ones",
    "rainbow": "it is d3qn or qr_dqn with `prioritized: true` and `n_step: 3`",
    **dict.fromkeys(
        ("trpo", "appo", "impala"),
        "it is not here; ppo, with `target_kl` if you like, is the nearest",
    ),
    **dict.fromkeys(("bc", "cql", "iql", "marwil"), "nothing learns from recorded data here"),
    **dict.fromkeys(("mappo", "qmix", "maddpg"), "an environment has one agent here"),
}  # by lower-case name, with or without its separators


def counterpart(name: str, known: Collection[str]) -> str:
    """What another library's `name` is called here, in a sentence; empty for an unknown one. Of
    several counterparts those that are `known` where it was written are named, or whose section
    is."""
    for library, names in _COUNTERPARTS.items():
        if name.casefold() in names:
            here = names[name.casefold()].split(" or ")
            near = [each for each in here if set(each.split(".")) & set(known)]
            fitting = [each for each in here if each in known] or near or here
            told = (f"`{each}` of a job" if "." in each else f"`{each}`" for each in fitting)
            return f"`{name}` of {library} is {' or '.join(told)} here"
    return _SENTENCES.get(name.casefold(), _SENTENCES.get(_plain(name), ""))


def advice(name: str, known: Collection[str], *, most: int = 2) -> str:
    """A sentence on a `name` that is not `known`: its counterpart, the nearest known names, or all
    of them."""
    by_plain = {_plain(each): each for each in known}
    if _plain(name) in by_plain:
        return f"did you mean {by_plain[_plain(name)]}?"
    return counterpart(name, known) or did_you_mean(
        name, known, f"expected one of {', '.join(known)}", most=most
    )


def did_you_mean(name: str, known: Iterable[str], otherwise: str, *, most: int = 3) -> str:
    """A question with the names that are spelt alike, however they are capitalized; `otherwise` if
    none is."""
    by_spelling = {each.casefold(): each for each in sorted(known)}
    nearest = difflib.get_close_matches(name.casefold(), by_spelling, n=most, cutoff=0.5)
    return (
        f"did you mean {' or '.join(by_spelling[each] for each in nearest)}?"
        if nearest
        else otherwise
    )


def schedule_advice(value: object) -> str:
    """What to write for a schedule such as `lin_3e-4`, or a function of progress; empty for any
    other value."""
    if not callable(value) and not (
        isinstance(value, str) and value.startswith(("lin_", "linear_"))
    ):
        return ""
    return (
        f"; only the learning rate has a schedule: give its first value, and {_SCHEDULE}: "
        "linear or cosine"
    )


def _plain(name: str) -> str:
    """`RecurrentPPO` and `recurrent_ppo` alike."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())


Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class LocatedViolation(FieldViolation):
    """A violation with its place in a file: `job.yaml:12: search.space.gamma: expected …, got
    …`."""

    source: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {super().__str__()}"


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar, a sequence or a mapping of nodes.

    line       where the value starts, from 1
    key_line   the line of its key (the value's line for an item of a sequence)
    count      number of nodes in it, itself included, aliases counted each time
    """

    value: Scalar | tuple[Node, ...] | Mapping[str, Node]
    line: int
    key_line: int
    count: int = 1

    @classmethod
    def from_plain(cls, value: Any) -> Node:
        """JSON values (and paths) as a tree without meaningful line numbers."""
        if isinstance(value, Mapping):
            return cls({str(key): cls.from_plain(inner) for key, inner in value.items()}, 0, 0)
        if isinstance(value, list | tuple):
            return cls(tuple(cls.from_plain(inner) for inner in value), 0, 0)
        return cls(os.fspath(value) if isinstance(value, os.PathLike) else value, 0, 0)

    def plain(self) -> Any:
        """The value without lines: scalars, lists and dicts."""
        if isinstance(self.value, Mapping):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value

    def find(self, path: str) -> Node:
        """The node at `search.space.gamma` or `algorithms[1]`, or the deepest existing node on the
        way."""
        if isinstance(self.value, Mapping):
            for key in sorted(self.value, key=len, reverse=True):  # keys may have dots in them
                rest = path.removeprefix(key)
                if path.startswith(key) and (not rest or rest[0] in ".["):
                    return self.value[key].find(rest.removeprefix("."))
        elif isinstance(self.value, tuple) and (found := re.match(r"\[(\d+)\]\.?", path)):
            index = int(found[1])
            if index < len(self.value):
                return self.value[index].find(path[found.end() :])
        return self


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file; `source` is its name in messages."""

    source: str
    root: Node

    def locate(self, violation: FieldViolation) -> LocatedViolation:
        """The same violation with the line of its field, or of the nearest enclosing node."""
        if isinstance(violation, LocatedViolation):
            return violation
        node = self.root.find(violation.field)
        return LocatedViolation(violation.field, violation.message, self.source, node.key_line)

    def refuse(self, violations: Sequence[FieldViolation]) -> InvalidInput:
        """The error with all violations and their lines, in the file's order."""
        located = sorted(
            (self.locate(violation) for violation in violations),
            key=lambda violation: violation.line,
        )
        message = str(located[0])
        if len(located) > 1:
            message = f"{self.source} has {len(located)} mistakes:\n" + "\n".join(
                f"  {entry}" for entry in located
            )
        return InvalidInput(message, violations=located, reason="INVALID_FILE", source=self.source)


T = TypeVar("T")

INVALID: Any = object()
"""The result of a builder for a value that it has reported as wrong."""

BuildFunction = Callable[["Builder", Node, str], Any]


def build(
    cls: type[T], document: Document, builders: Mapping[Any, BuildFunction] | None = None
) -> T:
    """An instance of the dataclass `cls` from the document's root.

    Understands nested dataclasses, `X | None` and other unions, tuple[X, ...], tuple[A, B],
    Mapping[str, X], Literal, enums, Seconds, ByteSize, Path, Any and scalars. `builders` gives the
    function for types that need another notation.

    Raises InvalidInput with every unknown key (and the nearest known one), missing key and wrong
    value, by line."""
    builder = Builder(document.source, builders or {})
    instance = builder.value(cls, document.root, "")
    if builder.problems:
        raise document.refuse(builder.problems)
    return instance  # type: ignore[no-any-return]


class Builder:
    """Builds values and collects `problems`; a value that could not be built is INVALID."""

    def __init__(self, source: str, builders: Mapping[Any, BuildFunction]) -> None:
        self.source = source
        self.builders = builders
        self.problems: list[LocatedViolation] = []

    def value(self, kind: Any, node: Node, path: str) -> Any:
        """A value of the type `kind` from `node`, whose field path is `path`."""
        if kind in self.builders:
            return self.builders[kind](self, node, path)
        if get_origin(kind) is Annotated and not unit_of(kind):
            kind = get_args(kind)[0]
        origin = get_origin(kind)
        if kind is Any:
            return node.plain()
        if len(alternatives(kind)) > 1:
            return self._union(kind, node, path)
        if is_dataclass(kind):
            return self.dataclass(kind, node, path)
        if origin is tuple:
            return self._tuple(kind, node, path)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return self._mapping(get_args(kind)[1], node, path)
        try:
            return from_yaml(kind, node.value)
        except ValueError:
            return self.wrong(node, path, expected(kind))

    def raise_problems(self) -> None:
        """Raises InvalidInput with all `problems`, if there are any."""
        if self.problems:
            violations = [FieldViolation(each.field, each.message) for each in self.problems]
            raise InvalidInput("; ".join(map(str, violations)), violations=violations)

    def report(self, node: Node, path: str, message: str, *, at_key: bool = False) -> Any:
        """Report a problem at a node; returns INVALID."""
        line = node.key_line if at_key else node.line
        self.problems.append(LocatedViolation(path, message, self.source, line))
        return INVALID

    def wrong(self, node: Node, path: str, wanted: str) -> Any:
        """Report a value of the wrong form; returns INVALID."""
        return self.report(node, path, f"expected {wanted}, got {_got(node)}")

    def dataclass(self, kind: Any, node: Node, path: str) -> Any:
        """An instance of the dataclass `kind` from a mapping whose keys are its fields."""
        kinds = get_type_hints(kind, include_extras=True)
        known = {field.name: field for field in fields(kind) if field.init}
        if not isinstance(node.value, Mapping):
            return self.wrong(node, path, f"a mapping with the keys {', '.join(known)}")
        values: dict[str, Any] = {}
        for key, child in node.value.items():
            if key in known:
                values[key] = self.value(kinds[key], child, _join(path, key))
            else:
                self.unknown_key(child, path, key, known)
        for name, field in known.items():
            if name not in values and field.default is MISSING and field.default_factory is MISSING:
                self.report(
                    node,
                    _join(path, name),
                    f"is missing; expected {expected(kinds[name])}",
                    at_key=True,
                )
                values[name] = INVALID
        if any(value is INVALID for value in values.values()):
            return INVALID
        try:
            return kind(**values)
        except InvalidInput as error:
            for violation in error.violations:
                self.report(
                    node.find(violation.field),
                    _join(path, violation.field),
                    violation.message,
                    at_key=True,
                )
            return INVALID if error.violations else self.report(node, path, error.message)

    def unknown_key(self, node: Node, path: str, key: str, known: Mapping[str, Any]) -> Any:
        """Report an unknown key; returns INVALID."""
        return self.report(
            node, _join(path, key), f"unknown key; {advice(key, known)}", at_key=True
        )

    def _union(self, kind: Any, node: Node, path: str) -> Any:
        """The first alternative that fits. If none fits and only one has the node's shape, its
        problems are reported."""
        told: list[list[LocatedViolation]] = []
        for option in alternatives(kind):
            trial = Builder(self.source, self.builders)
            value = trial.value(option, node, path)
            if not trial.problems:
                return value
            if option is not NoneType and _has_shape(option, node):
                told.append(trial.problems)
        if len(told) == 1 and isinstance(node.value, Mapping | tuple):
            self.problems += told[0]
            return INVALID
        return self.wrong(node, path, expected(kind))

    def _tuple(self, kind: Any, node: Node, path: str) -> Any:
        kinds = get_args(kind)
        if not isinstance(node.value, tuple):
            return self.wrong(node, path, expected(kind))
        if kinds[-1] is Ellipsis:
            kinds = (kinds[0],) * len(node.value)
        elif len(kinds) != len(node.value):
            return self.report(
                node, path, f"expected {expected(kind)}, got {len(node.value)} of them"
            )
        pairs = enumerate(zip(kinds, node.value, strict=True))
        values = tuple(
            self.value(item, child, f"{path}[{index}]") for index, (item, child) in pairs
        )
        return INVALID if any(value is INVALID for value in values) else values

    def _mapping(self, kind: Any, node: Node, path: str) -> Any:
        if not isinstance(node.value, Mapping):
            return self.wrong(node, path, "a mapping")
        values = {
            key: self.value(kind, child, _join(path, key)) for key, child in node.value.items()
        }
        return INVALID if any(value is INVALID for value in values.values()) else values


def _has_shape(kind: Any, node: Node) -> bool:
    """Whether a value of `kind` is written as this type of node: a mapping, a list or a scalar."""
    origin = get_origin(kind)
    is_mapping = is_dataclass(kind) or (isinstance(origin, type) and issubclass(origin, Mapping))
    if isinstance(node.value, Mapping):
        return is_mapping
    if isinstance(node.value, tuple):
        return origin is tuple
    return not is_mapping and origin is not tuple


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path and key else path or key


def _got(node: Node) -> str:
    if isinstance(node.value, Mapping):
        return "a mapping" if node.value else "an empty mapping"
    if isinstance(node.value, tuple):
        return "a list" if node.value else "an empty list"
    if node.value is None:
        return "nothing"
    text = repr(node.value)
    return text if len(text) <= 60 else f"{text[:57]}…"
