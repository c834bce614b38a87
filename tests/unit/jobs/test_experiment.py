"""`matrix:` in a job file."""

from __future__ import annotations

import pytest

from podracer_core.catalogue import Fixed, Interval
from podracer_core.errors import InvalidInput
from podracer_core.sections import AlgorithmShare, Dimension, PodCount
from podracer_platform.jobs import Experiment, JobSpec, load_experiment, parse_experiment
from support.errors import raises

BASE = """\
name: grid
environment: CartPole-v1
objective: {target_return: 475, max_duration: 5m}
"""


def _grid(axes: str, base: str = BASE) -> Experiment:
    return parse_experiment(f"{base}matrix:\n{axes}")


def _mistakes(text: str) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        parse_experiment(text)
    return [str(violation) for violation in caught.value.violations]


def test_a_file_without_a_matrix_is_one_job():
    experiment = parse_experiment(BASE)
    assert (experiment.name, experiment.axes) == ("grid", ())
    (job,) = experiment.jobs
    assert (job.name, job.labels) == ("grid", {})


def test_the_product_in_the_order_of_the_axes_with_names_and_labels():
    experiment = _grid("  search.algorithms: [[ppo], {ppo: 2, d3qn: 1}]\n  seed: [0, 7]\n")
    assert experiment.axes == ("search.algorithms", "seed")
    assert [job.name for job in experiment.jobs] == ["grid-1", "grid-2", "grid-3", "grid-4"]
    assert [job.seed for job in experiment.jobs] == [0, 7, 0, 7]
    assert experiment.jobs[2].search.algorithms == (
        AlgorithmShare("ppo", 2.0),
        AlgorithmShare("d3qn"),
    )
    assert experiment.jobs[3].labels == {
        "experiment": "grid",
        "matrix.search.algorithms": "{ppo: 2, d3qn: 1}",
        "matrix.seed": "7",
    }


def test_a_value_may_be_anything_that_the_field_may_be():
    axes = """\
  search.space.ppo.gamma: [0.9, {uniform: [0.9, 0.99]}]
  environment.id: [Pendulum-v1]
  environment.kwargs.g: [9.81]
  pod.count: [2]
  evolution: [{population: 4}]
"""
    first, second = _grid(axes).jobs
    assert first.search.space == (Dimension("gamma", Fixed(0.9), "ppo"),)
    assert second.search.space == (Dimension("gamma", Interval(0.9, 0.99), "ppo"),)
    assert second.environment.kwargs == {"g": 9.81}
    assert second.environment.id == "Pendulum-v1"
    assert second.pod.count == PodCount(2, 2)
    assert second.evolution.population == 4
    assert second.labels["matrix.evolution"] == "{population: 4}"


def test_what_stands_in_the_file_already_gives_way_and_what_is_beside_it_stays():
    experiment = _grid(
        "  pod.members: [2, auto]\n", BASE + "pod: {members: 1, workers: 3}\nlabels: {team: blue}\n"
    )
    assert [job.pod.members for job in experiment.jobs] == [2, None]
    assert {job.pod.workers for job in experiment.jobs} == {3}
    assert experiment.jobs[0].labels == {
        "team": "blue",
        "experiment": "grid",
        "matrix.pod.members": "2",
    }


def test_long_values_are_cut_and_still_told_apart():
    values = [
        f"{{choice: [{', '.join(str(0.9 + 0.001 * n)[:5] for n in range(count))}]}}"
        for count in (9, 12, 15)
    ]
    jobs = _grid(f"  search.space.gamma: [{', '.join(values)}]\n").jobs
    texts = [job.labels["matrix.search.space.gamma"] for job in jobs]
    assert (
        texts[0]
        == "{choice: [0.9, 0.901, 0.902, 0.903, 0.904, 0.905, 0.906, 0.907, 0.908]}"[:56] + "… #1"
    )
    assert texts[1].endswith("… #2")
    assert len(set(texts)) == 3


def test_a_value_of_several_lines_has_a_label_of_one():
    (job,) = _grid(
        '  environment.kwargs.text: ["a\\nb"]\n',
        BASE.replace("CartPole-v1", "{entry_point: 'm:E'}"),
    ).jobs
    assert job.environment.kwargs == {"text": "a\nb"}
    assert job.labels["matrix.environment.kwargs.text"] == "a\\nb"


def test_every_job_survives_the_wire():
    for job in _grid("  seed: [0, 1]\n  evolution.scheduler: [tournament, generational]\n").jobs:
        stored = JobSpec.from_message(job.to_message())
        assert JobSpec.from_message(stored.to_message()) == stored
        assert stored.labels == job.labels


def test_a_thousand_jobs_and_no_more():
    hundred = ", ".join(map(str, range(100)))
    assert (
        len(_grid(f"  seed: [{hundred}]\n  weight: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n").jobs) == 1000
    )
    text = f"{BASE}matrix:\n  seed: [{hundred}]\n  weight: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]\n"
    assert _mistakes(text) == ["job.yaml:4: matrix: makes 1_100 jobs; expected at most 1_000"]


@pytest.mark.parametrize(
    ("axes", "mistakes"),
    [
        ("matrix: {}", ["4: matrix: expected axes, such as {seed: [0, 1, 2], search.algorithms: "
                        "[[ppo], [sac]]}"]),
        ("matrix: [seed]", ["4: matrix: expected axes, such as {seed: [0, 1, 2], "
                            "search.algorithms: [[ppo], [sac]]}"]),
        ("matrix:\n  seed: []", ["5: matrix.seed: expected a list of at least one value, such as "
                                 "[0, 1, 2]"]),
        ("matrix:\n  seed: 3", ["5: matrix.seed: expected a list of at least one value, such as "
                                "[0, 1, 2]"]),
        ("matrix:\n  seed: [1, 1]", ["5: matrix.seed: 1 is there twice"]),
        ("matrix:\n  seed: [0]\n  pod..x: [1]",
         ["6: matrix.pod..x: expected the path of a field that may differ between jobs, such as "
          "seed or search.space.gamma"]),
        ("matrix:\n  name: [a, b]",
         ["5: matrix.name: expected the path of a field that may differ between jobs, such as seed "
          "or search.space.gamma"]),
        *((f"matrix:\n  {path}: [a, b]",
           [f"5: matrix.{path}: expected the path of a field that may differ between jobs, such as "
            "seed or search.space.gamma"]) for path in ("labels", "labels.experiment",
            "labels.matrix.seed")),
        ("matrix:\n  environment.kwargs.x: [1, '1']", ["5: matrix.environment.kwargs.x: 1 is there "
                                                       "twice"]),
        ("matrix:\n  pod: [{workers: 2}]\n  pod.workers: [1]",
         ["6: matrix.pod.workers: is part of the axis pod: keep one of the two"]),
        ("matrix:\n  sede: [0, 1]", ["5: sede: unknown key; did you mean seed?"]),
        ("matrix:\n  seed: [0, x]", ["5: seed: expected a whole number, got 'x' (where seed = x)"]),
        ("matrix:\n  name.x: [0]",
         ["5: matrix.name.x: does not fit: the key above it in the file holds a value, expected a "
          "section"]),
        ("matrix:\n  seed: [0, 1]\n  pod.members: [2, 9]",
         ["6: pod.members: 1 pods of 9 members need a population of 9; it is 8 "
          "(where seed = 0, pod.members = 9, and 1 more)"]),
        ("matrix:\n  seed: [0, 1]\nlabels: {experiment: mine}",
         ["6: labels.experiment: is set by the matrix; choose another label"]),
    ],
)  # fmt: skip
def test_a_mistake_is_told_once_with_its_line_and_its_combination(axes, mistakes):
    assert _mistakes(BASE + axes) == [f"job.yaml:{mistake}" for mistake in mistakes]


def test_a_mistake_of_all_jobs_is_told_once(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        BASE.replace("475", "many").replace("grid", "Grid") + "matrix: {seed: [0, 1, 2]}\n"
    )
    with raises(InvalidInput, field="objective.target_return"):
        load_experiment(path)
    path.write_text(path.read_text().replace("many", "475"))
    with pytest.raises(InvalidInput, match="got 'Grid'"):
        load_experiment(path)


def test_names_and_labels_that_would_be_too_long():
    text = BASE.replace("grid", "g" * 62)
    assert _mistakes(f"{text}matrix: {{seed: [0, 1]}}\n") == [
        "job.yaml:1: name: with -2 at its end it has more than 63 characters; expected a shorter "
        "one"
    ]
    key = "environment.kwargs." + "x" * 40
    assert _mistakes(f"{BASE}matrix: {{{key}: [1]}}\n") == [
        f"job.yaml:4: matrix.{key}: is too long for a label: expected at most 56 characters"
    ]
