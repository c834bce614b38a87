"""`podracer data` against an orchestrator."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from typing import Any

import numpy as np
import pytest

from podracer.common.v1 import environment_pb2, tensor_pb2
from podracer_trading.market_data import checked, read_table
from support.commands import run_here
from support.stock_market import Row, days_of, market_rows, split_shares, write_csv


@pytest.fixture
def rows() -> list[Row]:
    rows = market_rows(2, 60)
    return split_shares(rows, "AAB", days_of(rows)[50], 1.3)


def words_for(site: Any, *words: str) -> list[str]:
    server = ["--orchestrator", site.server.address, "--leaderboard", site.board_address]
    return ["data", *words, *server, "--token-file", str(site.folder / "tokens" / "client")]


async def data(site: Any, *words: str) -> tuple[int, str, str]:
    """Exit code, output and messages of the command, in the site's folder."""
    result = await asyncio.to_thread(run_here, *words_for(site, *words), cwd=site.folder)
    return result.returncode, result.stdout, result.stderr


async def started(site: Any, *words: str) -> int:
    """The exit code of the command in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "podracer_client", *words_for(site, *words)),
        cwd=site.folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PODRACER_")},
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        return await asyncio.wait_for(process.wait(), 120)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def fine(site: Any, *words: str) -> str:
    code, out, told = await data(site, *words)
    assert code == 0, (words, told)
    return out


async def shown(site: Any, name: str) -> dict[str, Any]:
    return json.loads(await fine(site, "show", name, "--json"))


async def test_a_data_set_grows_while_a_job_keeps_its_own(site, rows):
    days = days_of(rows)
    write_csv(site.folder / "old.csv", [row for row in rows if row["time"] < days[45]])
    write_csv(site.folder / "new.csv", [row for row in rows if row["time"] >= days[40]])
    told = json.loads(await fine(site, "import", "old.csv", "--name", "prices", "--json"))
    first = await shown(site, "prices")
    assert (first["sha256"], first["rows"], first["adjust"]) == (told["sha256"], 90, "auto")
    key = f"projects/default/artifacts/prices/{first['sha256'][:16]}-content"
    reference = tensor_pb2.ObjectReference(
        key=key, sha256=first["sha256"], size_bytes=first["size_bytes"], name="prices.parquet"
    )
    await site.create(
        environment=environment_pb2.EnvironmentSpec(id="StockTrading-v0"), data={"table": reference}
    )

    out = await fine(site, "import", "new.csv", "--name", "prices", "--append")
    assert "wrote 120 rows, 30 rows of them new to the data set prices" in out
    second = await shown(site, "prices")
    assert (second["rows"], second["last"], second["ex_rights"]) == (120, days[-1], 1)
    nothing = json.loads(
        await fine(site, "import", "new.csv", "--name", "prices", "--append", "--json")
    )
    assert (nothing["added_rows"], nothing["sha256"]) == (0, second["sha256"])
    assert (await shown(site, f"prices.{first['sha256'][:16]}"))["sha256"] == first["sha256"]
    names = [json.loads(line)["name"] for line in (await fine(site, "list", "--json")).splitlines()]
    assert sorted(names) == ["prices", f"prices.{first['sha256'][:16]}"]

    await fine(site, "download", "prices", "-o", "copy.parquet")
    content = (site.folder / "copy.parquet").read_bytes()
    assert hashlib.sha256(content).hexdigest() == second["sha256"]
    await fine(site, "import", str(write_csv(site.folder / "all.csv", rows)), "-o", "whole.parquet")
    grown, whole = (
        checked(read_table(str(site.folder / name), {}))
        for name in ("copy.parquet", "whole.parquet")
    )
    np.testing.assert_allclose(grown.prices, whole.prices, rtol=1e-12)
    np.testing.assert_array_equal(grown.time, whole.time)
    await fine(site, "delete", "prices")
    assert (await data(site, "show", "prices"))[0] == 2


async def test_several_who_add_at_once_lose_nothing(site, rows):
    """Each adds bars of its own ticker: the second one reads the data set again and adds to
    that."""
    days = days_of(rows)
    write_csv(site.folder / "old.csv", [row for row in rows if row["time"] < days[20]])
    await fine(site, "import", "old.csv", "--name", "prices", "--adjust", "none")
    imports = []
    for ticker in ("AAA", "AAB"):
        newer = [row for row in rows if row["time"] >= days[20] and row["ticker"] == ticker]
        write_csv(site.folder / f"{ticker}.csv", newer)
        imports.append(
            started(
                site, "import", f"{ticker}.csv", "--name", "prices", "--append", "--adjust", "none"
            )
        )
    assert await asyncio.gather(*imports) == [0, 0]
    assert (await shown(site, "prices"))["rows"] == 120


async def test_bad_input_is_told_in_a_line_and_changes_nothing(site, rows):
    days = days_of(rows)
    write_csv(site.folder / "all.csv", rows)
    await fine(site, "import", "all.csv", "--name", "prices")
    before = await shown(site, "prices")
    changed = [row | {"volume": 7} if row["time"] == days[30] else row for row in rows]
    write_csv(site.folder / "changed.csv", changed)
    write_csv(site.folder / "twice.csv", [*rows, rows[5]])
    (site.folder / "text.csv").write_text("hello\n")
    for words, expected in (
        (
            ["import", "changed.csv", "--name", "prices", "--append"],
            f"AAA {days[30]}: volume is 7, and",
        ),
        (["import", "twice.csv", "--name", "prices"], "row 121 (AAB"),
        (["import", "text.csv", "--name", "prices"], "has no column"),
        (["import", "none.csv", "--name", "prices"], "No such file"),
        (["import", "all.csv", "--name", "Not_A_Label"], "cannot be the name of a data set"),
        (["import", "all.csv", "--append"], "--append needs --name"),
        (["import", "all.csv", "--name", "other", "--append"], "there is no data set other"),
        (
            ["import", "all.csv", "--name", "prices", "--append", "--adjust", "none"],
            "--adjust auto: say the same",
        ),
        (["import", "all.csv", "--adjust", "maybe"], "expected auto or none"),
        (["import", "all.csv", "--daily-limit", "10"], "expected a fraction between 0 and 1"),
        (["import", "all.csv", "--columns", "price=close"], "--columns has 'price=close'"),
        (["import", "all.csv", "-o", "nowhere/x.parquet"], "expected a file in an existing folder"),
        (["show", "other"], "there is no data set other"),
        (["delete", "other"], "there is no data set other"),
        (["download", "prices", "-o", "all.csv"], "already exists"),
    ):
        code, out, told = await data(site, *words)
        assert (code, out) == (2, ""), words
        assert expected in told, (words, told)
        assert "Traceback" not in told
    assert await shown(site, "prices") == before
    assert len(list(site.store.list("projects/default/artifacts/"))) == 1


async def test_an_artifact_that_is_no_data_set_is_told(site, tmp_path):
    from podracer.orchestrator.v1 import artifact_service_pb2 as artifact_pb2

    header = artifact_pb2.UploadHeader(
        artifact_id="page",
        kind=artifact_pb2.ARTIFACT_KIND_REPORT,
        sha256=hashlib.sha256(b"").hexdigest(),
    )
    await site.client.artifacts.Upload(iter([artifact_pb2.UploadRequest(header=header)]))
    code, _, told = await data(site, "show", "page")
    assert (code, "page is an artifact of kind REPORT" in told) == (2, True)
    assert await fine(site, "list") == "no data sets\n"
