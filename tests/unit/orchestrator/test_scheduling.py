"""Who gets pods and who gets work."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from dataclasses import dataclass, field

import pytest

from podracer_orchestrator.jobs import PodKind
from podracer_orchestrator.pool import Demand, FairShare, Growth, Load, Room, share_pods

GIB = 1 << 30


def demand(uid: str, least: int = 1, most: int = 1, weight: float = 1.0, **changes) -> Demand:
    return Demand(uid, weight, least, most, **changes)


def counts(demands, **room):
    return share_pods(demands, Room(**room)).counts


def test_one_job_gets_what_it_wants_up_to_the_cores():
    assert counts([demand("a", 1, 2)], cores=2) == {"a": 2}
    assert counts([demand("a", 1, 8)], cores=4) == {"a": 4}
    assert counts([demand("a", 1, 8, cpu=2.0)], cores=4) == {"a": 2}
    assert counts([demand("a", 1, 8)], cores=4, max_pods=3) == {"a": 3}
    assert counts([demand("a", 1, 4096, cpu=0.001)], cores=1e6) == {"a": 4096}


def test_a_machine_too_small_still_runs_one_pod():
    jobs = [demand("a", 2, 2, cpu=8.0), demand("b", cpu=8.0)]
    assert counts(jobs, cores=2) == {"a": 1, "b": 0}
    assert counts([demand("a", 2, 2, memory_bytes=GIB)], memory_bytes=0) == {"a": 1}


def test_each_gets_its_minimum_in_turn_and_the_rest_goes_by_weight():
    jobs = [demand("a", 1, 9), demand("b", 1, 9, weight=2.0)]
    assert counts(jobs, cores=6) == {"a": 2, "b": 4}
    assert counts([demand("a", 3, 3), demand("b", 1, 1)], cores=3) == {"a": 3, "b": 0}


def test_memory_and_gpus_limit_too():
    assert counts([demand("a", 1, 9, memory_bytes=GIB)], memory_bytes=3.5 * GIB) == {"a": 3}
    gpu = PodKind(gpus=2)
    assert counts([demand("a", 1, 9, kind=gpu)], gpus=5) == {"a": 2}
    assert counts([demand("a", 1, 9, kind=gpu), demand("b")], gpus=1) == {"a": 0, "b": 1}


@pytest.mark.parametrize(
    ("wanted", "room", "limit"),
    [
        (demand("a", 1, 2), Room(), ""),
        (demand("a", 1, 3), Room(cores=2.0), "cores: 0 of 2 free, a pod needs 1"),
        (demand("a", 1, 3), Room(max_pods=1), "pods: 1 at most (PODRACER_MAX_PODS)"),
        (
            demand("a", 1, 3, memory_bytes=2 * GIB),
            Room(memory_bytes=3 * GIB),
            "memory: 1.0 GiB free for pods, a pod needs 2.0 GiB",
        ),
        (demand("a", kind=PodKind(gpus=1)), Room(gpus=0), "GPUs: 0 of 0 free, a pod needs 1"),
    ],
)
def test_it_says_what_keeps_the_pool_from_growing(wanted, room, limit):
    assert share_pods([wanted], room).limit == limit


def test_without_demand():
    assert share_pods([], Room(cores=2)).counts == {}
    assert FairShare().order([]) == []


def test_kinds_have_names_that_can_be_read_back():
    kinds = [
        PodKind(),
        PodKind(False, 3),
        PodKind(True, 0, 2),
        PodKind(False, 1, 1, 4),
        PodKind(threads=2, profile="gpu1-on-x"),
        PodKind(False, 1, profile="x", owner="0123abcd"),
    ]
    assert [kind.name for kind in kinds] == [
        "fused",
        "split3",
        "fused-gpu2",
        "split1-gpu1-threads4",
        "fused-threads2-on-gpu1-on-x",
        "split1-of-0123abcd-on-x",
    ]
    assert [PodKind.parse(kind.name) for kind in kinds] == kinds


@dataclass
class Contest:
    """Jobs whose rounds take `round_s` seconds each, on a few pods; the job whose turn it is gets a
    free pod."""

    weights: dict[str, float]
    pods: int
    round_s: dict[str, float]
    most: dict[str, int] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.fair = FairShare()
        self.active = dict.fromkeys(self.weights)
        self.used: Counter[str] = Counter()
        self.running: list[tuple[float, int, str, float]] = []
        self.numbers = itertools.count()

    def loads(self) -> list[Load]:
        held = Counter(job for _, _, job, _ in self.running)
        by_clock = Counter()
        for _, _, job, begun in self.running:
            by_clock[job] += self.now - begun
        return [
            Load(job, self.weights[job], self.used[job] + by_clock[job], held[job])
            for job in self.active
        ]

    def run(self, until_s: float) -> None:
        while self.now < until_s:
            while len(self.running) < self.pods and self.fill():
                pass
            end, _, job, begun = heapq.heappop(self.running)
            self.now = end
            self.used[job] += end - begun

    def fill(self) -> bool:
        loads = self.loads()
        order = self.fair.order(loads)
        held = {load.job_uid: load.held for load in loads}
        able = [job for job in order if held[job] < self.most.get(job, 99)]
        if not able:
            return False
        self.fair.level(order[: order.index(able[0])], able[0], loads)
        begun = self.now
        heapq.heappush(
            self.running, (begun + self.round_s[able[0]], next(self.numbers), able[0], begun)
        )
        return True


@pytest.mark.parametrize("pods", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "round_s", [{"a": 1.0, "b": 1.0}, {"a": 3.0, "b": 0.7}, {"a": 0.3, "b": 2.0}]
)
def test_device_seconds_go_by_weight(pods, round_s):
    contest = Contest({"a": 2.0, "b": 1.0}, pods, round_s)
    contest.run(300.0)
    assert contest.used["a"] / contest.used["b"] == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("pods", [1, 2, 3])
def test_who_joins_neither_starves_nor_takes_all(pods):
    contest = Contest(dict.fromkeys("abc", 1.0) | {"a": 2.0}, pods, dict.fromkeys("abc", 1.0))
    del contest.active["c"]
    contest.run(200.0)
    before = Counter(contest.used)
    contest.active["c"] = None
    contest.run(210.0)
    assert contest.used["c"] <= pods * 10 * 0.5  # it does not catch up for the time before
    contest.run(400.0)
    since = contest.used - before
    assert [since[job] / since.total() for job in "abc"] == pytest.approx(
        [0.5, 0.25, 0.25], rel=0.1
    )
    assert min(since.values()) > 0


def test_who_was_away_begins_level():
    contest = Contest({"a": 1.0, "b": 1.0}, 1, {"a": 1.0, "b": 1.0})
    contest.run(20.0)
    del contest.active["b"]
    contest.run(120.0)
    contest.active["b"] = None
    before = Counter(contest.used)
    contest.run(160.0)
    since = contest.used - before
    assert since["a"] == pytest.approx(since["b"], abs=2.0)


def test_who_has_all_the_pods_it_wants_saves_nothing_up():
    contest = Contest({"a": 3.0, "b": 1.0}, 3, {"a": 1.0, "b": 1.0}, most={"a": 1})
    contest.run(100.0)
    assert contest.used["a"] == pytest.approx(100.0, rel=0.05)
    contest.most["a"] = 3
    before = Counter(contest.used)
    contest.run(140.0)
    since = contest.used - before
    assert since["a"] / since["b"] == pytest.approx(3.0, rel=0.15)


def test_a_new_weight_counts_from_now_on():
    contest = Contest({"a": 1.0, "b": 1.0}, 2, {"a": 1.0, "b": 1.0})
    contest.run(100.0)
    contest.weights["a"] = 4.0
    before = Counter(contest.used)
    contest.run(200.0)
    since = contest.used - before
    assert since["a"] / since["b"] == pytest.approx(4.0, rel=0.15)


def test_who_joins_is_not_level_with_one_that_waits_for_another_kind_of_pod():
    fair = FairShare()
    fair.turns([Load("stuck", 1.0, 0.0, 0, "gpu"), Load("a", 1.0, 0.0, 1, "fused")])
    loads = [
        Load("stuck", 1.0, 0.0, 0, "gpu"),
        Load("a", 1.0, 900.0, 1, "fused"),
        Load("b", 1.0, 0.0, 0, "split1"),
    ]
    assert fair.turns(loads) == {"stuck": 0.0, "a": 900.0, "b": 900.0}


def test_a_job_that_has_left_is_not_put_level():
    fair, loads = FairShare(), [Load("a", 1.0, 0.0, 0), Load("b", 1.0, 4.0, 1)]
    fair.turns(loads)
    fair.turns(loads[1:])  # a caller whose snapshot has no `a`
    fair.level(["a"], "b", loads)
    fair.level(["b"], "a", loads)
    assert fair.order(loads) == ["a", "b"]


def test_in_a_cluster_all_that_is_wanted_waits_for_a_place_at_once_up_to_a_limit():
    everybody = [demand("a", 1, 64), demand("b", 1, 64)]
    assert counts(everybody, growth=Growth({}, 200)) == {"a": 64, "b": 64}
    assert counts(everybody, growth=Growth({}, 100)) == {"a": 50, "b": 50}
    assert counts(everybody, growth=Growth({"fused": 28}, 100)) == {"a": 64, "b": 64}
    assert counts(everybody, max_pods=40, growth=Growth({"fused": 30}, 100)) == {"a": 20, "b": 20}
    # what has a place
    assert counts(everybody, growth=Growth({"fused": 28}, 0)) == {"a": 14, "b": 14}
    full = share_pods(everybody, Room(growth=Growth({}, 9)))
    assert full.limit == "pods: 9 at most wait for a place (PODRACER_POOL_MAX_PENDING)"


def test_a_kind_that_never_finds_a_place_keeps_no_other_from_it():
    """A job that waits for what the cluster does not have uses nothing, so that its turn never
    ends."""
    stuck, other = demand("stuck", 64, 64, kind=PodKind(gpus=8)), demand("b", 1, 64)
    why = {"fused-gpu8": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"}
    for limits in ({}, {"max_pods": 64}):
        placed: dict[str, int] = {}
        for _ in range(64):
            shares = share_pods([stuck, other], Room(**limits, growth=Growth(placed, 10, why)))
            placed["fused"] = shares.counts["b"]
            assert 1 <= shares.counts["stuck"] <= 10
            assert shares.limit == why["fused-gpu8"]
        assert shares.counts == {"stuck": 4 if limits else 10, "b": 60 if limits else 64}


def test_a_kind_that_has_all_the_pods_gives_way_to_one_that_waits():
    jobs = [demand("new", 1, 64, kind=PodKind(False, 1)), demand("old", 1, 64)]
    placed, rounds = {"fused": 64, "split1": 0}, 0
    while placed["split1"] < 32:
        shares = counts(jobs, max_pods=64, growth=Growth(placed, 100)).values()
        placed, rounds = dict(zip(("split1", "fused"), shares, strict=True)), rounds + 1
    assert placed == {"fused": 32, "split1": 32}
    assert rounds == 7
    assert counts(jobs, max_pods=64, growth=Growth(placed, 100)) == {"new": 32, "old": 32}


def test_where_fewer_may_wait_than_there_are_kinds_each_has_one_and_those_furthest_ahead_no_more():
    kinds = [demand(f"job{index}", 1, 5, kind=PodKind(False, index)) for index in range(1, 4)]
    assert counts(kinds, growth=Growth({}, 1)) == {"job1": 1, "job2": 1, "job3": 1}
    assert counts(kinds, growth=Growth({}, 5)) == {"job1": 2, "job2": 2, "job3": 1}
