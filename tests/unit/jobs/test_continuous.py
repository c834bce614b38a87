"""`continuous`, `warm_start`, `retrain`, data sets by name: written, refused by line, made a
message and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from podracer_core.errors import InvalidInput
from podracer_platform.jobs import (
    Continuous,
    Founder,
    JobSpec,
    NamedDataSet,
    Retrain,
    WarmStart,
    parse_job,
)

TRADER = """name: trader
environment: {id: StockTrading-v0, kwargs: {evaluation_split: validation}}
objective: {max_env_steps: 1000}
"""
NAMED = TRADER + "data: {table: {data_set: china}}\n"
PLAIN = "name: x\nenvironment: CartPole-v1\nobjective: {max_env_steps: 1000}\n"


def test_a_continuous_job_is_read_and_goes_there_and_back():
    text = (
        "continuous: {data_set: table, interval: 1d, alias: best, contest: {evaluation_split: "
        "test}, margin: 0.1}"
    )
    spec = parse_job(NAMED + text)
    assert spec.data == {"table": NamedDataSet("china")}
    assert spec.continuous == Continuous(
        "table", 86400.0, "best", {"evaluation_split": "test"}, 0.1
    )
    message = spec.to_message()
    assert (dict(message.data_sets), len(message.data)) == ({"table": "china"}, 0)
    back = JobSpec.from_message(message)
    assert (back.data, back.continuous) == (spec.data, spec.continuous)


def test_a_server_keeps_the_name_beside_what_it_stands_for():
    message = parse_job(NAMED).to_message()
    reference = message.data["table"]
    reference.key, reference.sha256, reference.size_bytes = (
        "projects/default/artifacts/china/x",
        "0" * 64,
        7,
    )
    spec = JobSpec.from_message(message)
    assert isinstance(found := spec.data["table"], NamedDataSet) and found.file is not None
    assert spec.to_message().data["table"] == reference
    assert dict(spec.to_message().data_sets) == {"table": "china"}


def test_founders_go_there_and_back():
    founder = Founder(
        "projects/p/jobs/j/agents/a1",
        "projects/p/jobs/u/agents/a1/checkpoints/1-1/",
        "0" * 64,
        "ppo",
        {"gamma": 0.9},
    )
    spec = replace(parse_job(PLAIN), warm_start=(founder,))
    assert JobSpec.from_message(spec.to_message()).warm_start == (founder,)
    asked = parse_job(PLAIN + "warm_start: former")
    assert asked.warm_start == WarmStart("former", 1)
    with pytest.raises(InvalidInput, match="looked"):
        asked.to_message()


def test_training_once_more_goes_there_and_back():
    whole = "retrain: {kwargs: {sutton_barto_reward: true}, env_steps: 500, scratch: true}"
    for text, wanted in (
        (whole, Retrain({"sutton_barto_reward": True}, 500, True)),
        ("retrain: {}", Retrain()),
    ):
        spec = parse_job(PLAIN + text)
        assert spec.retrain == wanted
        assert JobSpec.from_message(spec.to_message()).retrain == wanted


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (PLAIN + "continuous: {}", "continuous: would never begin a second generation"),
        (
            PLAIN + "continuous: {interval: 0.1}",
            "continuous.interval: expected at least 1 s, got 0.1",
        ),
        (PLAIN + "continuous: {interval: 1d, alias: A}", "continuous.alias: expected a DNS label"),
        (
            PLAIN + "continuous: {interval: 1d, margin: -1}",
            "continuous.margin: expected 0 or more, got -1.0",
        ),
        (
            PLAIN + "continuous: {interval: 1d, marign: 1}",
            "continuous.marign: unknown key; did you mean margin?",
        ),
        (
            PLAIN + "continuous: {interval: 1d, data_set: table}",
            "continuous.data_set: 'table' is no argument with",
        ),
        (
            PLAIN + "continuous: {interval: 1d, contest: {splot: test}}",
            "continuous.contest.splot: unknown argument",
        ),
        (
            NAMED + "continuous: {contest: {max_stock: many}}",
            "continuous.contest.max_stock: expected a whole number",
        ),
        (TRADER + "data: {table: {data_set: CHINA}}", "data.table: 'CHINA' is no data set's name"),
        (
            TRADER + "data: {table: {dataset: china}}",
            "data.table.dataset: unknown key; did you mean data_set?",
        ),
        (
            PLAIN + "warm_start: {job: a, candidates: 0}",
            "warm_start.candidates: expected 1 to 64, got 0",
        ),
        (
            PLAIN + "warm_start: {candidates: 2}",
            "expected either a job, by its name, or a checkpoint",
        ),
        (PLAIN + "retrain: {kwargs: {gravity: 1}}", "retrain.kwargs.gravity: unknown argument"),
        (
            NAMED + "continuous: {}\nretrain: {kwargs: {split: all}}",
            "continuous.contest: is required with retrain",
        ),
        (PLAIN + "retrain: {env_steps: 0}", "retrain.env_steps: expected more than 0, got 0"),
        (PLAIN + "retrain: true", "retrain: expected a mapping, got True"),
        (
            TRADER + "data: {table: {data_set: a}}\nretrain: {kwargs: {max_stock: many}}",
            "retrain.kwargs.max_stock: exp",
        ),
    ],
)
def test_mistakes_are_told(text, mistake):
    with pytest.raises(InvalidInput) as caught:
        parse_job(text)
    assert mistake in caught.value.message
    assert "job.yaml:" in caught.value.message
