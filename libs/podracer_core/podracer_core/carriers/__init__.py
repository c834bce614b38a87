"""How tensors cross between processes: inline in a message; shared memory and CUDA IPC come behind the same names."""
