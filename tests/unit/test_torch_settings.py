"""Products of a GPU are in TF32; those of a CPU stay what they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from podracer_core.device import set_up_torch


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (matmul.allow_tf32, cudnn.allow_tf32)
    on_cpu = torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.backends.mkldnn.matmul.fp32_precision = on_cpu
    torch.set_num_threads(threads)
    matmul.allow_tf32, cudnn.allow_tf32 = before


def test_tf32_is_for_cuda_alone():
    torch.manual_seed(0)
    left, right = torch.randn(2, 64, 64)
    exact, on_cpu = left @ right, torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    set_up_torch(1)
    assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32
    assert torch.get_num_threads() == 1
    assert torch.backends.mkldnn.matmul.fp32_precision == on_cpu
    assert torch.equal(left @ right, exact)


def test_threads_are_left_to_torch():
    before = torch.get_num_threads()
    set_up_torch(None)
    assert torch.get_num_threads() == before


def test_bf16_is_for_products_on_a_cpu_alone():
    torch.manual_seed(0)
    left, right = torch.randn(2, 256, 256)
    exact = left @ right
    set_up_torch(None, "bf16")
    assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    # sums of 256 products of eight bits each
    torch.testing.assert_close(left @ right, exact, atol=0.5, rtol=0.0)
    assert torch.backends.cuda.matmul.allow_tf32
