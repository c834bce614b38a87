"""Compiles what holds a network on the chip for one that is not there: a JSON object for each
form."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from podracer_core.kernels import LOSS_ROWS, act_kernel, gradient_kernel, launch_form, loss_kernel

FORMS = {(4, 64, 64, 2): [2], (64, 64, 64, 64, 17): []}
BINARIES = Path(triton.backends.nvidia.__file__).parent / "bin"
TYPES = {"order": "*i64", "mask": "*i1", "limit": "fp32"}
COUNTS = {
    "count",
    "first",
    "size",
    "members",
    "S1",
    "S2",
    "S3",
    "SO",
    "T1",
    "T2",
    "T3",
    "TO",
    "SETTINGS",
    "NUMBERS",
}


def compile_for(
    capability: int, kernel: Any, constants: dict[str, Any], types: dict[str, str]
) -> dict[str, Any]:
    """What a kernel takes of the chip."""
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages")}
    types = dict.fromkeys(COUNTS, "i32") | TYPES | types
    signature = {
        name: "constexpr" if name in constants else types.get(name, "*fp32")
        for name in kernel.arg_names
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(ASTSource(kernel, signature, places), target=target, options=options)
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(compiled.asm["ptx"])
        file.flush()
        architecture = re.search(r"\.target (\w+)", compiled.asm["ptx"])[1]
        assembler = BINARIES / ("ptxas-blackwell" if capability >= 100 else "ptxas")
        command = [assembler, "-v", f"--gpu-name={architecture}", "-o", "/dev/null", file.name]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill stores", said)))
    return {"shared_bytes": compiled.metadata.shared, "spilled_bytes": spilled}


if __name__ == "__main__":
    capability = int(sys.argv[1])
    for sizes, choices in FORMS.items():
        parameters = sum(left * right + right for left, right in pairwise(sizes)) + (
            0 if choices else sizes[-1]
        )
        form = launch_form(sizes, choices, True, 0, "tf32", divmod(capability, 10))
        step = {
            "PARAMETERS": parameters,
            "ACTIONS": len(choices) or sizes[-1],
            "CLIPS_VALUES": True,
        }
        gradient = compile_for(capability, gradient_kernel, form | step, {})
        act = compile_for(
            capability, act_kernel, form | {"SEEN": sizes[0]}, {"action": "*i64"} if choices else {}
        )
        names = ("I", "O", "OP", "SIZES", "MASKED", "num_stages")
        loss = {name: form[name] for name in names} | step | {"ROWS": LOSS_ROWS, "num_warps": 4}
        del loss["PARAMETERS"]
        takes = {
            "gradient": gradient,
            "act": act,
            "loss": compile_for(capability, loss_kernel, loss, {}),
        }
        print(json.dumps({"form": sizes} | takes), flush=True)
