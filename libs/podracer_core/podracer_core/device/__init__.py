"""How torch, and the native libraries below it, use the processor and CUDA devices. This file imports nothing.

torch_settings   what a process that computes tells torch
native_settings  variables for such a process (no torch)
cuda_graphs      work on tensors as CUDA graphs
"""
