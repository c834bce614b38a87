"""Environments of others in a few child processes, over shared memory: Gymnasium's, and batched ones of users."""
