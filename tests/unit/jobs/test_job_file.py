"""Job files: the design's example, short forms, and every way to get one wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from podracer_core.catalogue import Choice, EnvironmentSpec, Fixed, IntegerInterval, Interval, Range
from podracer_core.errors import InvalidInput
from podracer_core.sections import (
    AlgorithmShare,
    Dimension,
    EvaluationPlan,
    Evolution,
    Objective,
    Pod,
    PodCount,
    Resources,
    Round,
    Search,
)
from podracer_platform.jobs import JobSpec, load_job_file, parse_job

JOB = """\
name: pendulum
environment: {id: Pendulum-v1}
objective: {target_return: -200, max_env_steps: 2_000_000, max_duration: 10m}
search:
  algorithms: [ppo]
  space: {learning_rate: {log_uniform: [1.0e-4, 1.0e-2]}, gamma: {choice: [0.9, 0.95, 0.99]}}
evolution: {scheduler: tournament, population: 8, leaderboard_size: 4, round: {seconds: 15}}
pod: {count: {min: 1, max: 2}, members: auto, envs_per_member: auto, learners: 1, workers: 1, layout: auto,
      resources: {cpu: 1, memory: 2Gi, gpu: 0}}
evaluation: {episodes: 32}
seed: 0
"""
TRADING = "name: j\nenvironment: StockTrading-v0\nobjective: {max_duration: 1h}\n"
SHORT = "name: j\nenvironment: Pendulum-v1\nobjective: {target_return: -200}\n"


def _mistakes(text: str, folder: Path = Path()) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        parse_job(text, folder=folder)
    return [str(violation) for violation in caught.value.violations]


def test_the_example_of_the_design(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    assert load_job_file(tmp_path / "job.yaml") == JobSpec(
        name="pendulum",
        environment=EnvironmentSpec(id="Pendulum-v1"),
        objective=Objective(target_return=-200.0, max_env_steps=2_000_000, max_duration=600.0),
        search=Search(
            algorithms=(AlgorithmShare("ppo"),),
            space=(
                Dimension("learning_rate", Interval(1e-4, 1e-2, logarithmic=True)),
                Dimension("gamma", Choice((0.9, 0.95, 0.99))),
            ),
        ),
        evolution=Evolution(population=8, leaderboard_size=4, round=Round(seconds=15.0)),
        pod=Pod(count=PodCount(1, 2), resources=Resources(cpu=1.0, memory=2 << 30)),
        evaluation=EvaluationPlan(32),
    )


def test_what_is_left_out_has_its_default():
    assert parse_job(SHORT) == JobSpec(
        "j", EnvironmentSpec(id="Pendulum-v1"), Objective(target_return=-200.0)
    )
    assert parse_job(SHORT + "search: {algorithms: auto}\npod: {count: 3}").pod.count == PodCount(
        3, 3
    )
    assert parse_job(SHORT + "evolution: {round: {env_steps: 1e5}}").evolution.round == Round(
        env_steps=100_000
    )


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("gamma: 0.99", Dimension("gamma", Fixed(0.99))),
        ("gamma: {uniform: [0.9, 1]}", Dimension("gamma", Interval(0.9, 1.0))),
        ("ppo.gamma: {choice: [0.9, 1]}", Dimension("gamma", Choice((0.9, 1)), "ppo")),
        ("horizon: {integer_uniform: [16, 64]}", Dimension("horizon", IntegerInterval(16, 64))),
        (
            "horizon: {integer_log_uniform: [16, 64]}",
            Dimension("horizon", IntegerInterval(16, 64, logarithmic=True)),
        ),
        ("hidden_sizes: [32, 32]", Dimension("hidden_sizes", Fixed((32, 32)))),
        (
            "hidden_sizes: {choice: [[32], [64, 64]]}",
            Dimension("hidden_sizes", Choice(((32,), (64, 64)))),
        ),
        ("activation: {choice: [tanh, relu]}", Dimension("activation", Choice(("tanh", "relu")))),
        ("normalize_observations: false", Dimension("normalize_observations", Fixed(False))),
    ],
)
def test_notations_of_a_range(written, read):
    assert parse_job(f"{SHORT}search:\n  space:\n    {written}\n").search.space == (read,)


def test_algorithms_may_have_shares():
    assert parse_job(SHORT + "search: {algorithms: {ppo: 2}}").search.algorithms == (
        AlgorithmShare("ppo", 2.0),
    )
    assert parse_job(SHORT + "search: {algorithms: ppo}").search.algorithms == (
        AlgorithmShare("ppo"),
    )


def test_a_users_environment_is_found_beside_the_file(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "my_pkg").mkdir()
    (tmp_path / "my_pkg" / "__init__.py").touch()
    path = tmp_path / "jobs" / "job.yaml"
    environment = (
        "{entry_point: my_pkg.envs:MyEnv, code: ../my_pkg, kwargs: {size: 3}, "
        "max_episode_steps: 50}"
    )
    path.write_text(f"name: j\nenvironment: {environment}\nobjective: {{max_duration: 1h}}")
    assert load_job_file(path).environment == EnvironmentSpec(
        entry_point="my_pkg.envs:MyEnv",
        code_path=str((tmp_path / "my_pkg").resolve()),
        kwargs={"size": 3},
        max_episode_steps=50,
    )


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("sede: 1", "sede: unknown key; did you mean seed?"),
        ("seed: x", "seed: expected a whole number, got 'x'"),
        ("pod: {members: all}", "pod.members: expected auto or a whole number, got 'all'"),
        ("pod: {envs_per_member: 0}", "pod.envs_per_member: expected 1 to 131_072, got 0"),
        ("pod: {layout: together}", "pod.layout: expected auto or split or fused, got 'together'"),
        ("search: {}", "search: is empty: name algorithms or a space, or leave it out"),
        ("search:", "search: expected a mapping with the keys algorithms, space, got nothing"),
        ("search: {algorithms: []}", "search.algorithms: is empty: name at least one algorithm, or "
                                     "write auto"),
        ("search: {algorithms: {}}", "search.algorithms: is empty: name at least one algorithm, or "
                                     "write auto"),
        ("search: {algorithms: 3}",
         "search.algorithms: expected auto, a list such as [ppo], or shares such as {ppo: 2}, got "
         "3"),
        ("search: {algorithms: [1]}", "search.algorithms[0]: expected text, got 1"),
        ("search: {space: {}}",
         "search.space: is empty: name a hyperparameter, or leave it out to search the algorithms' "
         "own ranges"),
        ("search: {space: {gamma: {unform: [0, 1]}}}",
         "search.space.gamma.unform: unknown key; did you mean uniform or log_uniform?"),
        ("search: {space: {gamma: {uniform: [0]}}}",
         "search.space.gamma.uniform: expected a list of 2 values, got 1 of them"),
        ("search: {space: {gamma: {uniform: [0, .inf]}}}", "search.space.gamma.uniform[1]: "
                                                           "expected a number, got inf"),
        ("search: {space: {gamma: {choice: []}}}",
         "search.space.gamma.choice: expected a list of at least one value, got an empty list"),
        ("search: {space: {hidden_sizes: [a]}}", "search.space.hidden_sizes[0]: expected a whole "
                                                 "number, got 'a'"),
        ("evolution: {round: {}}", "evolution.round: expected either seconds or env_steps, such as "
                                   "{seconds: 15}"),
        ("evolution: {round: {seconds: 0}}", "evolution.round.seconds: expected more than 0, got "
                                             "0.0"),
        ("evolution: {selection: best}", "evolution.selection: expected tournament or truncation, "
                                         "got 'best'"),
        ("evolution: {generator: 3}", "evolution.generator: expected text, got 3"),
        ("search: {algorithms: {ppo: .nan}}", "search.algorithms.ppo: expected a number, got nan"),
        ("matrix: {seed: [0, 1]}",
         "matrix: makes several jobs, expected one; use `podracer submit` or `podracer run`"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(line, mistake):
    assert _mistakes(SHORT + line) == [f"job.yaml:4: {mistake}"]


@pytest.mark.parametrize(
    ("environment", "mistakes"),
    [
        ("{}", ["job.yaml:2: environment: give either an id or an entry_point"]),
        (
            "Pendulm-v1",
            [
                "job.yaml:2: environment.id: unknown environment 'Pendulm-v1'; did you mean "
                "Pendulum-v1"
            ],
        ),
        (
            "{id: Pendulum-v1, gravity: 1}",
            ["job.yaml:2: environment.gravity: unknown key; expected one of id,"],
        ),
        (
            "{id: Pendulum-v1, max_episode_steps: 0}",
            ["job.yaml:2: environment.max_episode_steps: must be at least 1"],
        ),
        (
            "{entry_point: no colon}",
            ["job.yaml:2: environment.entry_point: 'no colon' is not of the form"],
        ),
        (
            "{entry_point: a:B, code: ./none}",
            ["job.yaml:2: environment.code: expected a folder; there is none at"],
        ),
        ("{entry_point: a:B, code: .}", ["job.yaml:2: environment.code: "]),
    ],
)
def test_mistakes_in_the_environment(environment, mistakes, tmp_path):
    found = _mistakes(
        f"name: j\nenvironment: {environment}\nobjective: {{target_return: 1}}", tmp_path
    )
    assert len(found) == len(mistakes)
    assert all(text.startswith(start) for text, start in zip(found, mistakes, strict=True)), found


def test_data_sets_are_found_beside_the_file(tmp_path):
    (tmp_path / "prices.csv").touch()
    spec = parse_job(TRADING + "data: {table: ./prices.csv}", folder=tmp_path)
    assert spec.data == {"table": str((tmp_path / "prices.csv").resolve())}


@pytest.mark.parametrize(
    ("data", "mistake"),
    [
        ("{table: gone.csv}", "data.table: expected a file; there is nothing at "),
        ("{table: folder}", "data.table: expected a file; there is a folder at "),
        (
            "{table: large.csv}",
            "data.table: {folder}/large.csv has 2048.0 MiB, the limit is 2048.0 MiB",
        ),
        (
            "{table: " + "p" * 300 + "}",
            f"data.table: {'p' * 100!r} cannot be looked up: File name too long",
        ),
        ('{table: "a\\0b"}', r"data.table: 'a\x00b' cannot be looked up: embedded null byte"),
        (
            "{table: ~missing-user/a}",
            "data.table: '~missing-user/a' cannot be looked up: Could not determine home directory",
        ),
        ("{table: 3}", "data.table: expected a path, got 3"),
        ("[a.csv]", "data: expected a mapping, got a list"),
        ("{two words: prices.csv}", "data.two words: is not the name of an argument"),
    ],
)
def test_mistakes_in_the_data(data, mistake, tmp_path):
    (tmp_path / "prices.csv").touch()
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large.csv").open("wb") as large:
        large.truncate((2 << 30) + 1)
    (found,) = _mistakes(
        SHORT.replace("Pendulum-v1", "{entry_point: a:B}") + f"data: {data}", tmp_path
    )
    assert found.startswith(f"job.yaml:4: {mistake.replace('{folder}', str(tmp_path))}")


def test_a_data_set_that_is_an_argument_already(tmp_path):
    (tmp_path / "prices.csv").touch()
    text = TRADING.replace("StockTrading-v0", "{id: StockTrading-v0, kwargs: {table: x}}")
    found = _mistakes(text + "data: {table: prices.csv}", tmp_path)
    assert found == ["job.yaml:4: data.table: is also in environment.kwargs: give table once"]


def test_all_mistakes_are_told_at_once(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: J\nenvironment: Pendulum-v1\nobjective:\n  max_env_steps: 0\nsearch:\n  space:\n    "
        "x: 1\n"
    )
    with pytest.raises(InvalidInput) as caught:
        load_job_file(path)
    first, *rest = str(caught.value).splitlines()
    assert first == f"{path} has 3 mistakes:"
    assert [line.split(": ")[:2] for line in rest] == [
        [f"  {path}:1", "name"],
        [f"  {path}:4", "objective.max_env_steps"],
        [f"  {path}:7", "search.space.x"],
    ]


def test_ranges_are_all_written_somewhere_above():
    assert set(Range.__args__) == {Interval, IntegerInterval, Choice, Fixed}
