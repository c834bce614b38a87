"""Gymnasium's classic control, batched in torch."""
