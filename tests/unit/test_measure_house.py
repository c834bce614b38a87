"""scripts/measure_house.py counts what a made-up house holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.processes import ROOT

CORE = "libs/podracer_core/podracer_core"
FILES = {
    f"{CORE}/__init__.py": '"""The core."""\n',
    f"{CORE}/errors.py": "import os\n\nNAME = os.name\n",
    f"{CORE}/rpc/__init__.py": "",
    f"{CORE}/rpc/call.py": "from podracer_core.errors import (\n    NAME,\n)\n",
    f"{CORE}/rpc/dial.py": "from podracer_core import errors\nfrom podracer_core.rpc import call",
    "libs/podracer_core/podracer/v1/stub_pb2.py": "x = 1\n" * 1000,
    "services/pilot/podracer_pilot/__init__.py": "",
    "services/pilot/podracer_pilot/left.py": "def go():\n    from podracer_pilot import right\n    return right\n",
    "services/pilot/podracer_pilot/right.py": "from podracer_pilot.left import go\n\n\ndef long():\n"
    + "    go()\n" * 60,
}


def test_a_made_up_house(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = [sys.executable, str(ROOT / "scripts" / "measure_house.py"), str(tmp_path)]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures = json.loads(table.splitlines()[-1])
    assert (figures["lines"], figures["files"]) == (1 + 3 + 3 + 2 + 3 + 64, 8)
    assert figures["import_share"] == round((1 + 3 + 2 + 1 + 1) / 76, 4)
    assert figures["one_importer"] == 3, "call, left and right; errors has two"
    assert figures["circles"] == [["podracer_pilot.left", "podracer_pilot.right"]]
    assert figures["folder_circles"] == figures["circles"]
    assert figures["long_functions"] == {"podracer_pilot.right:long": 61}
    assert figures["packages"] == {
        "podracer_core": {"lines": 9, "files": 5, "floors": 3},
        "podracer_pilot": {"lines": 67, "files": 3, "floors": 2},
    }
    assert "podracer_pilot.left ↔ podracer_pilot.right" in table
