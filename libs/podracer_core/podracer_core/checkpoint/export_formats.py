"""Writing a policy to a file of each format, and reading it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from podracer_core.errors import PreconditionFailed

Format = Literal["torch_export", "torchscript", "onnx"]

SUFFIX_OF: dict[Format, str] = {"torch_export": ".pt2", "torchscript": ".pt", "onnx": ".onnx"}
EXTRA_FILE = "podracer.json"
"""Name of the extra file inside an export, or of ONNX's metadata: a JSON object of the checkpoint's
metadata."""

OBSERVATION, ACTION = "observation", "action"
"""Names of an ONNX file's input and output."""


def _write_torch_export(policy: nn.Module, example: Tensor, path: Path, extra: str) -> None:
    program = torch.export.export(policy, (example,), dynamic_shapes=({0: _any_batch()},))
    torch.export.save(program, path, extra_files={EXTRA_FILE: extra})


def _read_torch_export(path: Path) -> Callable[[Tensor], Tensor]:
    return torch.export.load(path).module()


def _write_torchscript(policy: nn.Module, example: Tensor, path: Path, extra: str) -> None:
    with _without_deprecations():
        module = torch.jit.trace(policy, (example,))  # type: ignore[no-untyped-call]
        torch.jit.save(module, path, _extra_files={EXTRA_FILE: extra})


def _read_torchscript(path: Path) -> Callable[[Tensor], Tensor]:
    with _without_deprecations():
        loaded: Callable[[Tensor], Tensor] = torch.jit.load(path)  # type: ignore[no-untyped-call]
    return loaded


def _write_onnx(policy: nn.Module, example: Tensor, path: Path, extra: str) -> None:
    _require_onnx()
    with _without_deprecations(), _errors_only("torch.onnx"):
        program: Any = torch.onnx.export(
            policy,
            (example,),
            dynamo=True,
            input_names=[OBSERVATION],
            output_names=[ACTION],
            dynamic_shapes=({0: _any_batch()},),
            verbose=False,
        )
    program.model.metadata_props[EXTRA_FILE] = extra
    program.save(path, external_data=False)


def _read_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def act(observation: Tensor) -> Tensor:
        (action,) = session.run([ACTION], {OBSERVATION: observation.numpy()})
        return torch.from_numpy(action)

    return act


WRITERS: dict[Format, Callable[[nn.Module, Tensor, Path, str], None]] = {
    "torch_export": _write_torch_export,
    "torchscript": _write_torchscript,
    "onnx": _write_onnx,
}
"""policy, two observations [2, *obs], the path, and the text of `EXTRA_FILE`."""

READERS: dict[Format, Callable[[Path], Callable[[Tensor], Tensor]]] = {
    "torch_export": _read_torch_export,
    "torchscript": _read_torchscript,
    "onnx": _read_onnx,
}
"""observations [B, *obs] -> actions [B, *action] of the file."""


def _any_batch() -> Any:
    return torch.export.Dim("batch", min=1)


def _require_onnx() -> None:
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        message = (
            f"ONNX needs {error.name}, which is not installed here: pip install "
            "'podracer-core[onnx]'"
        )
        raise PreconditionFailed(message, reason="EXPORT_FORMAT") from error


@contextmanager
def _without_deprecations() -> Iterator[None]:
    """torch tells of its own plans on every use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*torch\.jit", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=r".*LeafSpec", category=FutureWarning)
        yield


@contextmanager
def _errors_only(name: str) -> Iterator[None]:
    """Silence warnings of a logger, such as that torchvision is missing, which no policy needs."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
