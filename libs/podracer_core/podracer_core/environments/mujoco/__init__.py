"""Gymnasium's MuJoCo environments (v5), stepped as one batch: on CPU by C MuJoCo, on CUDA by MuJoCo Warp."""
