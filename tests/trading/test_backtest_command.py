"""`podracer backtest` and the Backtest of a real evaluator."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podracer_client.local import private_evaluator
from podracer_client.policies import Competition
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.checkpoint import POLICY_GROUPS, load_actor, open_checkpoint_folder
from podracer_trading.backtest import BacktestRecord, daily_returns, edge_over_holding, replay
from podracer_trading.backtesting import play_baseline, play_policy
from podracer_trading.client import edge_in_validation
from podracer_trading.environment import StockTrading
from support.stock_market import days_of, market_rows, write_csv
from tests.integration.client.test_policies import FakeClient, evaluator, podracer, stored_policy  # noqa: F401 - a fixture

ROWS = market_rows(3, 160, seed=4)
DAYS = days_of(ROWS)
KWARGS = {"indicators": ["macd", "rsi"], "max_stock": 500, "sell_cost": 0.002}


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of prices.csv, with the level of an index beside the prices."""
    folder = tmp_path_factory.mktemp("market")
    level = {day: 100.0 + place for place, day in enumerate(DAYS)}
    rows = [row | {"hs300": level[row["time"]], "broken": row["close"]} for row in ROWS]
    with (folder / "prices.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


@pytest.fixture(scope="module")
def trader(market: Path) -> Path:
    """A random policy."""
    kwargs = {"table": str(market / "prices.csv"), **KWARGS}
    return stored_policy(EnvironmentSpec(id="StockTrading-v0", kwargs=kwargs), market)


@pytest.fixture(scope="module")
def tested(trader, tmp_path_factory):
    """Of the test split: what --json says, and the folder."""
    folder = tmp_path_factory.mktemp("tested")
    result = podracer("backtest", trader, "--index", "hs300", "-o", "out", "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), folder / "out"


def columns(path: Path) -> dict[str, list[str]]:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_its_curve_comes_again_from_the_fills_alone(tested):
    values, folder = tested
    equity = columns(folder / "equity.csv")
    times = np.array(equity["time"], "datetime64[us]")
    day = {np.datetime64(row["time"], "us"): place for place, row in enumerate(ROWS[::3])}
    close = np.array(
        [[ROWS[3 * day[time] + stock]["close"] for stock in range(3)] for time in times]
    )
    trades = (folder / "trades.csv").read_text()
    again = replay(trades, 1e6, values["tickers"], times, close)
    np.testing.assert_allclose(again, np.array(equity["value"], float), rtol=0.0, atol=1e-6)
    assert len(columns(folder / "trades.csv")["price"]) >= 5
    opens = {(row["ticker"], str(np.datetime64(row["time"], "us"))): row["open"] for row in ROWS}
    fills = columns(folder / "trades.csv")
    assert [float(price) for price in fills["price"]] == [
        opens[each] for each in zip(fills["ticker"], fills["filled"], strict=True)
    ], "at the next bar's open"
    assert values["accounts"]["policy"]["costs_paid"] == pytest.approx(
        sum(map(float, fills["cost"]))
    )


def test_what_it_is_held_against_and_the_page(tested):
    values, folder = tested
    accounts = values["accounts"]
    assert list(accounts) == ["policy", "buy_and_hold", "equal_weight_monthly", "index"]
    place = DAYS.index(values["from"][:10])
    assert values["to"][:10] == DAYS[-1]
    assert accounts["index"]["cumulative_return"] == pytest.approx(
        (99.0 + len(DAYS)) / (100.0 + place) - 1
    )
    assert accounts["index"]["max_drawdown"] == 0.0
    assert values["trained_bars"] == 0
    assert values["validation"] is None, "it belongs to no job"
    for account in accounts.values():
        assert (
            account["sharpe_interval"][0]
            <= account["sharpe_ratio"]
            <= account["sharpe_interval"][1]
        )
    held = accounts["buy_and_hold"]
    difference = accounts["policy"]["sharpe_ratio"] - held["sharpe_ratio"]
    assert held["policy_sharpe_above"] == pytest.approx(difference)
    page = (folder / "index.html").read_text()
    assert page.count("<svg") == 3
    assert "http://" not in page.replace("http://www.w3.org", "")
    for words in (
        "Worst falls",
        "Not simulated: slippage",
        "0.2 % of what is sold",
        "buy and hold",
        "AAB",
    ):
        assert words in page


def test_noise_on_the_future_changes_no_decision_before(tested, trader, market, tmp_path):
    """The table goes on for longer, and its last days are others: until then everything is as it
    was."""
    values, folder = tested
    cut = DAYS[-8]
    noise = np.random.default_rng(0)
    changed = [
        row
        if row["time"] < cut
        else row | {name: row[name] * noise.uniform(0.97, 1.03) for name in ("open", "close")}
        for row in ROWS
    ]
    for row in changed:
        row["high"], row["low"] = (pick(row["open"], row["close"]) for pick in (max, min))
    more = [
        row | {"time": row["time"].replace("20", "21", 1)} for row in market_rows(3, 20, seed=9)
    ]
    write_csv(tmp_path / "longer.csv", changed + more)
    data = ("--data", "longer.csv", "--from", values["from"][:10], "--to", DAYS[-1])
    result = podracer(
        "backtest", trader, *data, "-o", "out", "--against", "cash", "--json", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    again = json.loads(result.stdout)
    accounts = ["policy", "cash", "equal_weight_monthly"]
    assert (again["bars"], list(again["accounts"])) == (values["bars"], accounts)
    before, after = (columns(each / "equity.csv") for each in (folder, tmp_path / "out"))
    assert before["time"] == after["time"]
    same = before["time"].index(str(np.datetime64(cut, "us")))
    assert before["value"][:same] == after["value"][:same]
    assert before["value"][same:] != after["value"][same:]


def test_days_of_the_training_are_told(trader, tmp_path):
    result = podracer("backtest", trader, "--from", DAYS[60], "--to", DAYS[-40], cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "beware      the policy was trained on" in result.stdout
    assert "95 % interval" in result.stdout
    assert (tmp_path / f"{trader.name}-backtest" / "index.html").is_file()


def test_days_by_which_a_job_selected_are_not_tested_on(market, tmp_path):
    """The job evaluates from a day to a day, and trains on everything before: the test split begins
    after both."""
    kwargs = {
        "table": str(market / "prices.csv"),
        **KWARGS,
        "train_end": DAYS[99],
        "validation_end": DAYS[119],
        "evaluation_start": DAYS[100],
        "evaluation_end": DAYS[129],
    }
    policy = stored_policy(EnvironmentSpec(id="StockTrading-v0", kwargs=kwargs), tmp_path)
    result = podracer("backtest", policy, "-o", "out", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    values = json.loads(result.stdout)
    assert (values["from"][:10], values["to"][:10]) == (DAYS[120], DAYS[-1])
    assert (values["trained_bars"], values["selected_bars"]) == (0, 9)  # closes 120 to 129
    assert (
        "The policy was selected by 9 of these 40 bars"
        in (tmp_path / "out" / "index.html").read_text()
    )

    write_csv(tmp_path / "known.csv", [row for row in ROWS if row["time"] <= DAYS[129]])
    kwargs |= {
        "table": str(tmp_path / "known.csv"),
        "split": "all",
        "evaluation_split": "validation",
    }
    del kwargs["evaluation_start"], kwargs["evaluation_end"]
    policy = stored_policy(EnvironmentSpec(id="StockTrading-v0", kwargs=kwargs), tmp_path, 2)
    result = podracer(
        "backtest", policy, "--data", market / "prices.csv", "-o", "out", "--json", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    values = json.loads(result.stdout)
    assert (values["trained_bars"], values["selected_bars"], values["bars"]) == (9, 0, 40), (
        "not on days since then"
    )


def test_a_job_says_whether_its_best_has_an_edge_over_holding(
    market, trader, tmp_path, monkeypatch
):
    """Its leaderboard has three of five snapshots, of which the second agent's is the best."""
    kwargs = {
        "table": str(market / "prices.csv"),
        **KWARGS,
        "train_end": DAYS[89],
        "validation_end": DAYS[129],
    }
    runs = tmp_path / "runs"
    three = [
        stored_policy(EnvironmentSpec("StockTrading-v0", kwargs=kwargs), runs / "objects", n)
        for n in (1, 2, 3)
    ]
    for name in ("leaderboard", "orchestrator"):
        (runs / f"{name}.sqlite").touch()
    monkeypatch.setattr(
        "podracer_client.local.services.resting_services", lambda folder: FakeClient(three)
    )
    texts = [
        podracer("backtest", "j", "-o", "out", *more, cwd=tmp_path) for more in ((), ("--json",))
    ]
    assert texts[0].returncode == texts[1].returncode == 0, texts[0].stderr

    environment = StockTrading(1, evaluation=True, **kwargs)

    def returns(record: BacktestRecord) -> np.ndarray[Any, np.dtype[np.float64]]:
        return daily_returns(record.times, record.value)

    second, third, first = (
        returns(
            play_policy(
                load_actor(open_checkpoint_folder(three[number], POLICY_GROUPS)), environment
            )
        )
        for number in (1, 2, 0)
    )
    held = returns(play_baseline("buy_and_hold", environment))
    expected = edge_over_holding(second, held, np.stack([third, first]), 5)
    values = json.loads(texts[1].stdout)
    assert values["from"][:10] == DAYS[130], "itself of the days after"
    assert values["validation"] == pytest.approx({**asdict(expected), "edge": expected.is_there})
    assert 1.0 <= expected.independent_trials <= 5.0 == values["validation"]["trials"]
    line = texts[0].stdout.splitlines()[-2]
    assert line.startswith("validation  excess over holding, Sharpe ratio ")
    assert line.removeprefix("validation  ") in (tmp_path / "out" / "index.html").read_text()

    shutil.rmtree(three[2])  # a candidate's checkpoint
    line = podracer("backtest", "j", "-o", "out", cwd=tmp_path).stdout.splitlines()[-2]
    assert line.startswith("validation  not known: ")

    same = {**kwargs, "validation_end": DAYS[89]}
    trained = stored_policy(EnvironmentSpec("StockTrading-v0", kwargs=same), tmp_path)
    with private_evaluator() as stub:
        brought: list[Path] = []
        found = [
            edge_in_validation(Competition([each], 5), stub, brought.append)
            for each in (trained, trader)
        ]
    assert brought == [trained, trader]
    assert found[0] == "none: the policy was trained on the days that selected it"
    assert str(found[1]).startswith("not known: an edge over holding shows in 20 days or more")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--from", "2040-01-01"), "--from is 2040-01-01: usable bars run from"),
        (("--to", "1999-12-31"), "--to is 1999-12-31: usable bars run from"),
        (("--from", DAYS[-3], "--to", DAYS[-9]), "there are 0 bars, and two are needed at least"),
        (("--from", "soon"), "--from is 'soon'; a date such as 2018-12-31"),
        (("--index", "dax"), "has no column 'dax'; it has ticker, time, open"),
        (("--index", "broken"), "the level of an index is the same for all tickers at a time"),
        (("--against", "luck"), "there is no baseline 'luck'; expected some of buy_and_hold"),
        (("--data", "none.csv"), "--data: there is no file none.csv"),
        (("-o", "/dev/null/out"), "cannot make the folder /dev/null/out: /dev/null is a file"),
        (("--set", "max_stocks=3"), "max_stocks: unknown key; did you mean max_stock"),
    ],
)
def test_what_cannot_be_is_told(trader, tmp_path, words, message):
    result = podracer("backtest", trader, *words, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir()), "nothing has changed"


def test_other_tickers_and_other_environments(trader, tmp_path):
    write_csv(tmp_path / "four.csv", market_rows(4, 160, seed=4))
    result = podracer("backtest", trader, "--data", "four.csv", cwd=tmp_path)
    assert result.returncode == 2
    assert "this table has AAD besides" in " ".join(result.stderr.split())
    names = {"AAA": "AAA", "AAB": "ZZZ", "AAC": "AAC"}
    write_csv(
        tmp_path / "others.csv",
        [row | {"ticker": names[row["ticker"]]} for row in market_rows(3, 160, seed=4)],
    )
    result = podracer("backtest", trader, "--data", "others.csv", cwd=tmp_path)
    assert result.returncode == 2
    message = "the policy was trained on AAA, AAB, AAC; this table lacks AAB and has ZZZ besides"
    assert message in " ".join(result.stderr.split())
    pendulum = stored_policy(EnvironmentSpec(id="Pendulum-v1"), tmp_path / "store")
    result = podracer("backtest", pendulum, cwd=tmp_path)
    assert result.returncode == 2
    assert "only policies of StockTrading-v0 can be back-tested" in " ".join(result.stderr.split())


def test_without_the_table_of_training(trader, market, tmp_path):
    copy = tmp_path / "policy"
    shutil.copytree(trader, copy)
    manifest = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text(manifest.replace(str(market), "/nowhere"))
    words = ("--data", market / "prices.csv", "--against", "cash")
    result = podracer("backtest", copy, *words, cwd=tmp_path)
    assert result.returncode == 2
    assert "give --set train_end=DATE" in " ".join(result.stderr.split())
    result = podracer(
        "backtest",
        copy,
        *words,
        "--set",
        f"train_end={DAYS[120]}",
        "--from",
        DAYS[121],
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr


def test_a_walk_forward_is_one_account(market, tmp_path):
    """Two policies, selected by later and later days: the second one takes over where its selection
    ended."""
    folders = []
    for number, (train_end, validation_end) in enumerate(
        [(DAYS[70], DAYS[90]), (DAYS[100], DAYS[120])], 1
    ):
        kwargs = {
            "table": str(market / "prices.csv"),
            **KWARGS,
            "train_end": train_end,
            "validation_end": validation_end,
        }
        folders.append(
            stored_policy(EnvironmentSpec(id="StockTrading-v0", kwargs=kwargs), tmp_path, number)
        )
    result = podracer(
        "backtest",
        *folders,
        "--walk-forward",
        "--index",
        "hs300",
        "-o",
        "out",
        "--json",
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    values = json.loads(result.stdout)
    first, second = values["windows"]
    assert [first["from"][:10], first["to"], second["to"][:10]] == [
        DAYS[91],
        second["from"],
        DAYS[-1],
    ]
    assert second["from"][:10] == DAYS[120]
    both = (1 + first["cumulative_return"]) * (1 + second["cumulative_return"]) - 1
    assert values["accounts"]["policy"]["cumulative_return"] == pytest.approx(both)
    assert list(values["accounts"]) == ["policy", "buy_and_hold", "equal_weight_monthly", "index"]
    equity = columns(tmp_path / "out" / "equity.csv")
    assert [time[:10] for time in equity["time"]] == DAYS[91:]
    place = {day: index for index, day in enumerate(DAYS)}
    close = np.array(
        [
            [ROWS[3 * place[time[:10]] + stock]["close"] for stock in range(3)]
            for time in equity["time"]
        ]
    )
    times = np.array(equity["time"], "datetime64[us]")
    again = replay(
        (tmp_path / "out" / "trades.csv").read_text(), 1e6, values["tickers"], times, close
    )
    np.testing.assert_allclose(again, np.array(equity["value"], float), rtol=0.0, atol=1e-6)
    assert "Windows" in (tmp_path / "out" / "index.html").read_text()

    result = podracer("backtest", *reversed(folders), "--walk-forward", cwd=tmp_path)
    assert result.returncode == 2
    assert "list the policies earliest first" in " ".join(result.stderr.split())
    result = podracer("backtest", folders[0], "--walk-forward", cwd=tmp_path)
    assert result.returncode == 2
    assert "give at least two policies" in " ".join(result.stderr.split())
