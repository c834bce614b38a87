"""What `podracer serve` is asked to serve."""

from __future__ import annotations

import pytest

from podracer_client.policies import Wanted, wanted_policies
from podracer_core.errors import InvalidInput
from support.errors import raises


def test_names_are_given_or_the_jobs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "best").mkdir()
    (tmp_path / "x=y@z").mkdir()
    texts = [
        "best",
        "a=projects/p/jobs/j/checkpoints/best",
        "job-7",
        "projects/p/jobs/k@champion",
        "b=job-7@newest",
    ]
    assert wanted_policies(texts) == [
        Wanted("policy", ("best",)),
        Wanted("a", ("projects/p/jobs/j/checkpoints/best",)),
        Wanted("job-7", ("job-7",)),
        Wanted("k", job="projects/p/jobs/k", alias="champion"),
        Wanted("b", job="projects/default/jobs/job-7", alias="newest"),
    ]
    assert wanted_policies(["both=best", "both=other"]) == [Wanted("both", ("best", "other"))]
    assert wanted_policies(["projects/p/jobs/j/checkpoints/best"])[0].name == "j"
    assert wanted_policies(["x=y@z"]) == [Wanted("policy", ("x=y@z",))], (
        "a folder that is there is a folder"
    )


@pytest.mark.parametrize("texts", [["a=j@x", "a=best"], ["a=best", "a=j@x"], ["j", "j@x"]])
def test_one_name_is_one_policy(texts):
    with raises(InvalidInput, field="POLICY"):
        wanted_policies(texts)
