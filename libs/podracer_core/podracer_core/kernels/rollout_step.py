"""What a rollout takes at every step, in one kernel each: acting, and sums over time."""

from __future__ import annotations

import triton
import triton.language as tl

from podracer_core.kernels.ppo_step import _FORBIDDEN, _HALF_LOG_TAU, _activated, _bias, _weight


@triton.jit
def act_kernel(
    observation, mean, scale, noise, mask, w1, w2, w3, wo, b1, b2, b3, bo, log_std, action,
    log_prob, count, S1, S2, S3, SO, T1, T2, T3, TO, SETTINGS, NUMBERS, limit,
    I: tl.constexpr, H1: tl.constexpr, H2: tl.constexpr, H3: tl.constexpr, O: tl.constexpr,
    IP: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, P3: tl.constexpr, OP: tl.constexpr,
    SEEN: tl.constexpr, SIZES: tl.constexpr, MASKED: tl.constexpr, ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The actions of one member in a part of its `count` environments, and their log-probability.

    observation [M, count, SEEN] raw, of which the first I are seen; mean and scale [M, 1, NUMBERS]
    of at least these; noise [M, count, O]; mask [M, count, O] bool; weights [M, in, out], biases
    [M, 1, out] and log_std [M, O], from one member to the next S, T and SETTINGS apart -> action
    [M, count, choices] int64 or [M, count, O] float32, and log_prob [M, count]."""
    own, row = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there = row < count
    place = own * count + row
    column, output = tl.arange(0, IP)[None, :], tl.arange(0, OP)[None, :]
    is_input, is_output = column < I, output < O
    x = tl.load(
        observation + place[:, None] * SEEN + column, mask=there[:, None] & is_input, other=0.0
    ).to(tl.float32)
    centre = tl.load(mean + own * NUMBERS + column, mask=is_input, other=0.0)
    x = (x - centre) / tl.load(scale + own * NUMBERS + column, mask=is_input, other=1.0)
    x = tl.where(x < -limit, -limit, tl.where(x > limit, limit, x))
    h = _activated(tl.dot(x, _weight(w1 + own * S1, I, H1, IP, P1), input_precision=PRECISION)
                   + _bias(b1 + own * T1, H1, P1), ACTIVATION)  # fmt: skip
    LAST: tl.constexpr = H3 if H3 > 0 else (H2 if H2 > 0 else H1)
    LP: tl.constexpr = P3 if H3 > 0 else (P2 if H2 > 0 else P1)
    if H2 > 0:
        h = _activated(tl.dot(h, _weight(w2 + own * S2, H1, H2, P1, P2), input_precision=PRECISION)
                       + _bias(b2 + own * T2, H2, P2), ACTIVATION)  # fmt: skip
    if H3 > 0:
        h = _activated(tl.dot(h, _weight(w3 + own * S3, H2, H3, P2, P3), input_precision=PRECISION)
                       + _bias(b3 + own * T3, H3, P3), ACTIVATION)  # fmt: skip
    y = tl.dot(h, _weight(wo + own * SO, LAST, O, LP, OP), input_precision=PRECISION) + _bias(
        bo + own * TO, O, OP
    )

    inside_rows = there[:, None] & is_output
    drawn = tl.load(noise + place[:, None] * O + output, mask=inside_rows, other=0.0)
    if len(SIZES) == 0:
        spread = tl.load(log_std + own * SETTINGS + output, mask=is_output, other=0.0)
        sample = y + tl.exp(spread) * drawn
        tl.store(action + place[:, None] * O + output, sample, mask=inside_rows)
        z = (sample - y) * tl.exp(-spread)
        total = tl.sum(tl.where(is_output, -0.5 * z * z - spread - _HALF_LOG_TAU, 0.0), 1)
    else:
        if MASKED:
            allowed = tl.load(mask + place[:, None] * O + output, mask=inside_rows, other=0)
            y = tl.where(allowed != 0, y, _FORBIDDEN)
        total = tl.zeros((ROWS,), tl.float32)
        begin: tl.constexpr = 0
        for choice in tl.static_range(len(SIZES)):
            inside = (output >= begin) & (output < begin + SIZES[choice])
            logits = tl.where(inside, y, float("-inf"))
            chosen = tl.argmax(tl.where(inside, y + drawn, float("-inf")), 1)
            # of NaN it may be any
            chosen = tl.minimum(tl.maximum(chosen, begin), begin + SIZES[choice] - 1)
            top = tl.max(logits, 1)
            power = tl.where(inside, tl.exp(tl.where(inside, y - top[:, None], 0.0)), 0.0)
            own_logit = tl.sum(tl.where(output == chosen[:, None], y, 0.0), 1)
            total += own_logit - top - tl.log(tl.sum(power, 1))
            tl.store(
                action + place * len(SIZES) + choice, (chosen - begin).to(tl.int64), mask=there
            )
            begin = begin + SIZES[choice]
    tl.store(log_prob + place, total, mask=there)


@triton.jit
def sum_kernel(
    terms, decay, start, sums, steps, columns, REVERSE: tl.constexpr, BLOCK: tl.constexpr
):
    """sums[t] = terms[t] + decay[t] * sums[t - 1], or of t + 1: all [steps, columns]; the first one
    follows `start`."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = column < columns
    present = tl.load(start + column, mask=there, other=0.0)
    place = tl.cast(columns, tl.int64) * (steps - 1 if REVERSE else 0) + column
    for _ in range(steps):
        factor = tl.load(decay + place, mask=there, other=0.0)
        present = tl.load(terms + place, mask=there, other=0.0) + factor * present
        tl.store(sums + place, present, mask=there)
        place += -columns if REVERSE else columns
