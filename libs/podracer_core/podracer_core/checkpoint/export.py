"""Export of a policy or an ensemble for use without Podracer, with observation normalization.

torch_export   `torch.export.load(path).module()(observation)`
torchscript    `torch.jit.load(path)(observation)`, for C++ and old versions of torch
onnx           `onnxruntime.InferenceSession(path).run(None, {"observation": observation})[0]`,
               without torch; making it needs the extra `podracer-core[onnx]`

All take raw observations [B, *obs] (images as uint8; float64 where the metadata's environment has
an `observation_origin`, which the file subtracts) with any B of 1 or more and give actions [B,
*action] in the environment's units. They know no action masks: where some actions are not allowed,
the caller has to see to it.

A file has been loaded again and compared with the policy that it was made from before it is there.

WRITERS and READERS have the file of each format."""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from podracer_core.catalogue import parts_of
from podracer_core.checkpoint.objects import Checkpoint
from podracer_core.checkpoint.policy import (
    likely_observations,
    load_ensemble_policy,
    load_policy,
    observation_origin,
    original_space,
    random_observations,
    rule_of,
)
from podracer_core.errors import InvalidInput, PreconditionFailed

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


MOST_DIFFERENCE = 1e-5
"""Largest difference between an action of the file and one of the policy, in parts of the action if
that is above 1."""

_BATCHES = (1, 2, 7)


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparison of an exported policy with its original.

    largest_difference   between two of their actions, relative to the action if that is above 1; 0
                         for choices
    observations         on which both acted
    """

    largest_difference: float
    observations: int


def export_policy(
    checkpoint: Checkpoint,
    path: Path,
    format: Format = "torch_export",  # noqa: A002
    observed: Tensor | None = None,
) -> Compared:
    """Write the checkpoint's greedy policy to `path`, whole or not at all; an existing file is
    replaced.

    It is compared on made-up observations, and on rows of a batch of environments, `observed`.
    Raises InvalidInput for an unknown format, a path that cannot be written, or a checkpoint that
    cannot act; PreconditionFailed if the format needs a missing package (EXPORT_FORMAT), or the
    file does not act alike (EXPORT_DIFFERS)."""
    metadata = {**checkpoint.metadata, **_layout(checkpoint)}
    return _export(lambda: load_policy(checkpoint), checkpoint, metadata, path, format, observed)


def export_ensemble(
    checkpoints: Sequence[Checkpoint],
    path: Path,
    format: Format = "torch_export",  # noqa: A002
    rule: str | None = None,
    observed: Tensor | None = None,
) -> Compared:
    """Export policies, best first, as one ensemble; `rule` None: by action space.

    The metadata in the file contain the policies' under `policies`, and the rule under `ensemble`.
    Raises as `export_policy` and `load_ensemble`."""
    metadata = {
        "ensemble": rule_of(checkpoints, rule),
        "policies": [dict(checkpoint.metadata) for checkpoint in checkpoints],
        **_layout(checkpoints[0]),
    }
    return _export(
        lambda: load_ensemble_policy(checkpoints, rule),
        checkpoints[0],
        metadata,
        path,
        format,
        observed,
    )


def compare(
    trained: nn.Module, exported: Callable[[Tensor], Tensor], observations: Tensor
) -> Compared:
    """Let both act on observations [N, *obs], one by one and in batches. Raises PreconditionFailed
    (EXPORT_DIFFERS)."""
    largest = 0.0
    for most in (*_BATCHES, len(observations)):
        batch = observations[:most]
        rows = len(batch)
        with torch.inference_mode():
            expected, found = trained(batch), exported(batch)
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            raise _differs(
                f"it gives {found.dtype} {list(found.shape)} for {rows} observations, "
                f"the policy {expected.dtype} {list(expected.shape)}"
            )
        size = expected.double().abs().clamp(min=1.0) if expected.is_floating_point() else 1.0
        off = (
            ((found.double() - expected.double()).abs() / size)
            .nan_to_num(torch.inf)
            .view(rows, -1)
            .amax(1)
        )
        largest = max(largest, float(off.max()))
        if largest > MOST_DIFFERENCE:
            row = int(off.argmax())
            raise _differs(
                f"on observation {row} of {rows} it does {found[row].tolist()}, the policy "
                f"{expected[row].tolist()}; {MOST_DIFFERENCE:g} is allowed"
            )
    return Compared(largest, len(observations))


def _layout(checkpoint: Checkpoint) -> dict[str, Any]:
    """The places of an observation's parts in what the file takes."""
    return {"observation_parts": [part.to_json() for part in parts_of(original_space(checkpoint))]}


def _export(
    load: Callable[[], nn.Module],
    checkpoint: Checkpoint,
    metadata: Mapping[str, Any],
    path: Path,
    format: Format,  # noqa: A002
    observed: Tensor | None,
) -> Compared:
    """`checkpoint`: one for what is observed."""
    if format not in WRITERS:
        raise InvalidInput(
            f"unknown format {format!r}: expected {' or '.join(get_args(Format))}", format=format
        )
    policy = load()
    observations = likely_observations(checkpoint)
    if observed is not None:
        raw = (observed + observation_origin(checkpoint)).to(observations.dtype)
        observations = torch.cat([observations, raw])
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            draft = Path(folder, f"policy{SUFFIX_OF[format]}")
            WRITERS[format](policy, random_observations(checkpoint, 2), draft, json.dumps(metadata))
            compared = compare(policy, READERS[format](draft), observations)
            draft.replace(path)
    except OSError as error:
        raise InvalidInput(
            f"cannot write {path}: {error.strerror}", reason="UNWRITABLE_PATH", path=path
        ) from error
    return compared


def _differs(what: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"the exported file does not act as the trained policy does, so it is refused: {what}",
        reason="EXPORT_DIFFERS",
    )
