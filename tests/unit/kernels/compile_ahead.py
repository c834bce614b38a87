"""Compiles PPO's gradient kernel for a chip that is not there; prints what each form takes, a JSON object a line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from podracer_core.kernels.ppo import gradient_meta
from podracer_core.kernels.ppo_step import gradient_kernel

FORMS = {(4, 64, 64, 2): [2], (64, 64, 64, 64, 17): []}
BINARIES = Path(triton.backends.nvidia.__file__).parent / "bin"

capability = int(sys.argv[1])
for sizes, choices in FORMS.items():
    parameters = sum(left * right + right for left, right in pairwise(sizes)) + (0 if choices else sizes[-1])
    constants = gradient_meta(
        sizes, choices, len(choices) or sizes[-1], True, 0, True, parameters, "tf32", divmod(capability, 10)
    )
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages")}
    names = gradient_kernel.arg_names
    types = dict.fromkeys(("parameters", "columns", "hyperparameters", "partial", "sums"), "*fp32")
    types |= {"order": "*i64"} | dict.fromkeys(("count", "first", "size", "members"), "i32")
    signature = {name: types.get(name, "constexpr") for name in names}
    source = ASTSource(gradient_kernel, signature, {(names.index(name),): value for name, value in constants.items()})
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(compiled.asm["ptx"])
        file.flush()
        architecture = re.search(r"\.target (\w+)", compiled.asm["ptx"])[1]
        assembler = BINARIES / ("ptxas-blackwell" if capability >= 100 else "ptxas")
        command = [assembler, "-v", f"--gpu-name={architecture}", "-o", "/dev/null", file.name]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill stores", said)))
    print(json.dumps({"form": sizes, "shared_bytes": compiled.metadata.shared, "spilled_bytes": spilled}), flush=True)
