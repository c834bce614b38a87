"""Several learners of one agent in a job file: what is right, and what each mistake is told."""

from __future__ import annotations

import pytest

from podracer_core.catalogue import fusion_names
from podracer_core.errors import InvalidInput
from podracer_core.sections import Fusion, Pod
from podracer_platform.jobs import JobSpec, parse_job
from podracer_platform.messages import pod_from_message, pod_to_message

JOB = "name: j\nenvironment: CartPole-v1\nobjective: {target_return: 475}\n"


def pod_of(text: str) -> Pod:
    return parse_job(f"{JOB}pod: {text}").pod


def mistakes(text: str) -> list[str]:
    with pytest.raises(InvalidInput) as caught:
        pod_of(text)
    return [f"{violation.field}: {violation.message}" for violation in caught.value.violations]


def test_several_learners_are_fused_by_the_mean_unless_the_job_says_otherwise():
    assert pod_of("{learners: 3}") == Pod(learners=3)
    assert pod_from_message(pod_to_message(pod_of("{profile: a100}"))).profile == "a100"
    assert pod_of("{learners: 2, fusion: weighted}").fusion == Fusion("weighted")
    text = (
        "{name: outer, interval: 8, quorum: 2, deadline: 500ms, learning_rate: 0.7, momentum: 0.9}"
    )
    assert pod_of(f"{{learners: 64, fusion: {text}}}").fusion == Fusion(
        "outer", 8, 2, 0.5, 0.7, 0.9
    )
    assert pod_of("{learners: 2, fusion: {name: their.own_2, momentum: 0.9}}").fusion == Fusion(
        "their.own_2", momentum=0.9
    )


@pytest.mark.parametrize(
    ("pod", "mistake"),
    [
        ("{learners: 0}", "pod.learners: expected 1 to 64, got 0"),
        (
            "{profile: A100}",
            "pod.profile: expected lower-case letters, digits and '-', at most 20; got 'A100'",
        ),
        ("{learners: 65}", "pod.learners: expected 1 to 64, got 65"),
        ("{learners: two}", "pod.learners: expected a whole number, got 'two'"),
        ("{fusion: mean}", "pod.fusion: fusion needs several learners"),
        ("{learners: 2, deterministic: true}", "pod.learners: expected 1 with deterministic: true"),
        (
            "{learners: 64, count: 65}",
            "pod.count.max: 65 times 64 learners are more than 4096 pods: expected 64 at most",
        ),
        ("{learners: 2, fusion: 7}", "pod.fusion: expected"),
        (
            "{learners: 2, fusion: ../x}",
            "pod.fusion.name: expected the name of an installed fusion, got '../x'",
        ),
        ("{learners: 2, fusion: {nmae: mean}}", "pod.fusion.nmae: unknown key; did you mean name"),
        ("{learners: 2, fusion: {interval: 0}}", "pod.fusion.interval: expected 1 to"),
        (
            "{learners: 2, fusion: {quorum: 3}}",
            "pod.fusion.quorum: expected 1 to 2, the number of learners; got 3",
        ),
        ("{learners: 2, fusion: {quorum: 0}}", "pod.fusion.quorum: expected 1 to 2"),
        ("{learners: 2, fusion: {deadline: 0}}", "pod.fusion.deadline: expected more than 0"),
        (
            "{learners: 2, fusion: {deadline: 2h}}",
            "pod.fusion.deadline: expected more than 0 and at most 3_600",
        ),
        (
            "{learners: 2, fusion: {name: outer, momentum: 1}}",
            "pod.fusion.momentum: expected 0 or more and less than 1",
        ),
        (
            "{learners: 2, fusion: {name: outer, momentum: -0.1}}",
            "pod.fusion.momentum: expected 0 or more",
        ),
        (
            "{learners: 2, fusion: {name: outer, learning_rate: 0}}",
            "pod.fusion.learning_rate: expected more than 0",
        ),
        (
            "{learners: 2, fusion: {momentum: 0.5}}",
            "pod.fusion.momentum: mean has no momentum: write name: outer",
        ),
        (
            "{learners: 2, fusion: {name: weighted, learning_rate: 1}}",
            "pod.fusion.learning_rate: weighted has no",
        ),
    ],
)
def test_a_mistake_is_told_at_its_field_with_what_would_be_right(pod, mistake):
    (told,) = mistakes(pod)
    assert told.startswith(mistake)


def test_not_a_number_is_no_momentum():
    (told,) = mistakes("{learners: 2, fusion: {name: outer, momentum: .nan}}")
    assert told.startswith("pod.fusion.momentum: expected")


def test_a_fusion_on_the_wire_is_the_same():
    for fusion in ("mean", "{name: outer, momentum: 0}", "{quorum: 1, deadline: 1s}"):
        spec = parse_job(f"{JOB}pod: {{learners: 2, fusion: {fusion}}}")
        assert JobSpec.from_message(spec.to_message()).pod.fusion == spec.pod.fusion


def test_the_built_in_fusions_are_known_without_torch():
    assert {"mean", "weighted", "outer"} <= set(fusion_names())
