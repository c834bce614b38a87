"""A gradient step of PPO in three kernels, for actor and critic of up to three hidden layers.

`gradient` works through the rows of a minibatch in blocks: a block's activations never leave the
chip, and the gradient of a part of the rows is written once. `reduce` adds the parts and squares
the sum, `adam` clips and moves the parameters. So a step reads each row twice (for the actor and
for the critic) and repeats bit by bit.

Everything is [M, …] or [2 M, …] as in `networks.actor`. `docs/algorithms/ppo.md` has the
equations.

    sums   [2 M, parts, 8]  weighted sums over rows: policy loss, value loss, entropy, KL
                            divergence, clipped rows; the sum of the weights
    state  [M, 16]          active, learning, the factor of the rate, steps of Adam; the sums over
                            the steps of an update of the five metrics above and the norm of the
                            gradient, and how many these are
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

_FORBIDDEN = tl.constexpr(-1e8)
_HALF_LOG_TAU = tl.constexpr(0.5 * math.log(2 * math.pi))
_LEAST_RATE = tl.constexpr(1e-5)
_GREATEST_RATE = tl.constexpr(1e-2)
_RATE_FACTOR = tl.constexpr(1.5)


@triton.jit
def _activated(x, KIND: tl.constexpr):
    if KIND == 0:
        e = tl.exp(-2.0 * tl.abs(x))
        size = (1.0 - e) / (1.0 + e)
        y = tl.where(x < 0, -size, size)
    elif KIND == 1:
        y = tl.where(x < 0, 0.0, x)
    else:
        y = tl.where(x > 0, x, tl.exp(tl.minimum(x, 0.0)) - 1.0)
    return tl.where(x != x, x, y)


@triton.jit
def _backward(slope, y, KIND: tl.constexpr):
    if KIND == 0:
        return slope * (1.0 - y * y)
    elif KIND == 1:
        return tl.where(y > 0, slope, 0.0)
    else:
        return tl.where(y > 0, slope, slope * (y + 1.0))


@triton.jit
def _matrix(start, ROWS: tl.constexpr, COLUMNS: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Pointers to a weight [ROWS, COLUMNS] as a block [R, C], and where it has numbers."""
    row, column = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    return start + row * COLUMNS + column, (row < ROWS) & (column < COLUMNS)


@triton.jit
def _weight(start, ROWS: tl.constexpr, COLUMNS: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    pointers, there = _matrix(start, ROWS, COLUMNS, R, C)
    return tl.load(pointers, mask=there, other=0.0)


@triton.jit
def _bias(start, COLUMNS: tl.constexpr, C: tl.constexpr):
    column = tl.arange(0, C)
    return tl.load(start + column, mask=column < COLUMNS, other=0.0)[None, :]


@triton.jit
def _store_layer(
    start, weight, bias, ROWS: tl.constexpr, COLUMNS: tl.constexpr, R: tl.constexpr, C: tl.constexpr
):
    pointers, there = _matrix(start, ROWS, COLUMNS, R, C)
    tl.store(pointers, weight, mask=there)
    column = tl.arange(0, C)
    tl.store(start + ROWS * COLUMNS + column, bias, mask=column < COLUMNS)


@triton.jit
def _critic_loss(
    y, output, old_value, target, weight, value_range, value_coefficient, CLIPS_VALUES: tl.constexpr
):
    """The loss of each row and its derivative in the outputs `y` of a critic."""
    value = tl.sum(tl.where(output == 0, y, 0.0), 1)
    error = value - target
    free = error * error
    value_slope = error
    if CLIPS_VALUES:
        moved = value - old_value
        outside = tl.abs(moved) > tl.where(value_range > 0, value_range, float("inf"))
        at_limit = old_value + tl.where(moved < 0, -value_range, value_range) - target
        held = tl.where(outside, at_limit * at_limit, free)
        value_slope = tl.where(held > free, 0.0, error)
        free = tl.where(held > free, held, free)
    slope = tl.where(output == 0, (value_coefficient * weight * value_slope)[:, None], 0.0)
    return 0.5 * weight * free, slope


@triton.jit
def _surrogate(log_prob, old_log_prob, advantage, weight, clip_range):
    """Policy loss, divergence and whether it is clipped, times the weight; the loss's derivative in
    log_prob [_, 1]."""
    log_ratio = log_prob - old_log_prob
    ratio = tl.exp(log_ratio)
    free = ratio * advantage
    within = tl.where(ratio < 1 - clip_range, 1 - clip_range, ratio)
    within = tl.where(within > 1 + clip_range, 1 + clip_range, within)
    clipped = within * advantage
    policy = -(weight * tl.where(free > clipped, clipped, free))
    kl = weight * (ratio - 1 - log_ratio)
    is_clipped = weight * tl.where(tl.abs(ratio - 1) > clip_range, 1.0, 0.0)
    return policy, kl, is_clipped, -(weight * tl.where(free > clipped, 0.0, free))[:, None]


@triton.jit
def _actor_loss(
    y, output, there, base, settings, old_log_prob, advantage, weight, clip_range,
    entropy_coefficient, I: tl.constexpr, O: tl.constexpr, OP: tl.constexpr, ACTIONS: tl.constexpr,
    SIZES: tl.constexpr, MASKED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Policy loss, divergence, whether it is clipped and entropy of each row, times its weight; the
    loss's derivative in the outputs `y` of an actor and in log_std. `base`: where each row begins;
    `settings`: where log_std does."""
    is_output = output < O
    log_prob, entropy = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    of_settings = tl.zeros((OP,), tl.float32)
    if len(SIZES) == 0:
        log_std = tl.load(settings + output, mask=is_output, other=0.0)
        action = tl.load(base[:, None] + I + output, mask=there[:, None] & is_output, other=0.0)
        z = tl.where(is_output, (action - y) * tl.exp(-log_std), 0.0)
        log_prob = tl.sum(tl.where(is_output, -0.5 * z * z - log_std - _HALF_LOG_TAU, 0.0), 1)
        entropy += tl.sum(tl.where(is_output, log_std + _HALF_LOG_TAU + 0.5, 0.0))
    else:
        logits = y
        if MASKED:
            allowed = tl.load(base[:, None] + I + ACTIONS + output, mask=is_output, other=0.0)
            logits = tl.where(allowed > 0, y, _FORBIDDEN)
        probs = tl.zeros((ROWS, OP), tl.float32)
        chosen, surprise = probs, probs
        begin: tl.constexpr = 0
        for choice in tl.static_range(len(SIZES)):
            inside = (output >= begin) & (output < begin + SIZES[choice])
            top = tl.max(tl.where(inside, logits, float("-inf")), 1)[:, None]
            power = tl.where(inside, tl.exp(tl.where(inside, logits - top, 0.0)), 0.0)
            total = tl.sum(power, 1)[:, None]
            own_log_probs = tl.where(inside, logits - top - tl.log(total), 0.0)
            own_probs = power / total
            action = tl.load(base + I + choice, mask=there, other=0.0).to(tl.int32)
            is_chosen = output == begin + action[:, None]
            own_entropy = -tl.sum(own_probs * own_log_probs, 1)
            log_prob += tl.sum(tl.where(is_chosen, own_log_probs, 0.0), 1)
            entropy += own_entropy
            probs += own_probs
            chosen += tl.where(is_chosen, 1.0, 0.0)
            surprise += tl.where(inside, own_log_probs + own_entropy[:, None], 0.0)
            begin = begin + SIZES[choice]
    policy, kl, is_clipped, of_log_prob = _surrogate(
        log_prob, old_log_prob, advantage, weight, clip_range
    )
    of_entropy = (-entropy_coefficient * weight)[:, None]
    if len(SIZES) == 0:
        slope = of_log_prob * z * tl.exp(-log_std)
        of_settings += tl.sum(tl.where(is_output, of_log_prob * (z * z - 1) + of_entropy, 0.0), 0)
    else:
        slope = of_log_prob * (chosen - probs) - of_entropy * probs * surprise
    return policy, kl, is_clipped, weight * entropy, slope, of_settings


@triton.jit
def gradient_kernel(
    parameters, columns, order, hyperparameters, partial, sums, count, first, size, members,
    I: tl.constexpr, H1: tl.constexpr, H2: tl.constexpr, H3: tl.constexpr, O: tl.constexpr,
    IP: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, P3: tl.constexpr, OP: tl.constexpr,
    PARAMETERS: tl.constexpr, ACTIONS: tl.constexpr, SIZES: tl.constexpr, MASKED: tl.constexpr,
    ACTIVATION: tl.constexpr, CLIPS_VALUES: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The gradient of one network over a part of a minibatch, and the sums of its metrics.

    parameters [2 M, PARAMETERS]; columns [M, count, _] float32, each row's observation, action,
    mask and numbers (`RolloutRows`); order [M, count] int64, of which `size` from `first` on are
    the minibatch; hyperparameters [4, M]: clip range, that of values, the coefficients of value and
    entropy -> partial [2 M, parts, PARAMETERS] and sums [2 M, parts, 8], which `reduce_kernel`
    divides by the weight. SIZES: of each choice, () for a Gaussian."""
    network, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    member, is_critic = network // 2, network % 2 == 1
    clip_range = tl.load(hyperparameters + member)
    value_range = tl.load(hyperparameters + members + member)
    value_coefficient = tl.load(hyperparameters + 2 * members + member)
    entropy_coefficient = tl.load(hyperparameters + 3 * members + member)
    MASK: tl.constexpr = O if MASKED else 0
    WIDTH: tl.constexpr = I + ACTIONS + MASK + 5
    own = parameters + network.to(tl.int64) * PARAMETERS
    w2 = own + I * H1 + H1
    LAST1: tl.constexpr = H1 * H2 + H2 if H2 > 0 else 0
    LAST2: tl.constexpr = H2 * H3 + H3 if H3 > 0 else 0
    LAST: tl.constexpr = H3 if H3 > 0 else (H2 if H2 > 0 else H1)
    LP: tl.constexpr = P3 if H3 > 0 else (P2 if H2 > 0 else P1)
    w3 = w2 + LAST1
    out = w3 + LAST2
    settings = out + LAST * O + O
    output = tl.arange(0, OP)[None, :]

    g1, c1 = tl.zeros((IP, P1), tl.float32), tl.zeros((P1,), tl.float32)
    if H2 > 0:
        g2, c2 = tl.zeros((P1, P2), tl.float32), tl.zeros((P2,), tl.float32)
    if H3 > 0:
        g3, c3 = tl.zeros((P2, P3), tl.float32), tl.zeros((P3,), tl.float32)
    go, co = tl.zeros((LP, OP), tl.float32), tl.zeros((OP,), tl.float32)
    of_settings = tl.zeros((OP,), tl.float32)
    policy_sum = tl.zeros((ROWS,), tl.float32)
    value_sum, entropy_sum, kl_sum = policy_sum, policy_sum, policy_sum
    clipped_sum, weight_sum = policy_sum, policy_sum

    place = (network * parts + part).to(tl.int64)
    for block in range(part, tl.cdiv(size, ROWS), parts):
        row = block * ROWS + tl.arange(0, ROWS)
        there = row < size
        start = member.to(tl.int64) * count
        index = tl.load(order + start + first + row, mask=there, other=0)
        base = columns + (start + index) * WIDTH
        numbers = base + I + ACTIONS + MASK
        old_log_prob = tl.load(numbers, mask=there, other=0.0)
        advantage = tl.load(numbers + 1, mask=there, other=0.0)
        target = tl.load(numbers + 2, mask=there, other=0.0)
        old_value = tl.load(numbers + 3, mask=there, other=0.0)
        weight = tl.load(numbers + 4, mask=there, other=0.0)

        column = tl.arange(0, IP)[None, :]
        x = tl.load(base[:, None] + column, mask=there[:, None] & (column < I), other=0.0)
        h1 = _activated(tl.dot(x, _weight(own, I, H1, IP, P1), input_precision=PRECISION)
                        + _bias(own + I * H1, H1, P1), ACTIVATION)  # fmt: skip
        last = h1
        if H2 > 0:
            h2 = _activated(tl.dot(h1, _weight(w2, H1, H2, P1, P2), input_precision=PRECISION)
                            + _bias(w2 + H1 * H2, H2, P2), ACTIVATION)  # fmt: skip
            last = h2
        if H3 > 0:
            h3 = _activated(tl.dot(h2, _weight(w3, H2, H3, P2, P3), input_precision=PRECISION)
                            + _bias(w3 + H2 * H3, H3, P3), ACTIVATION)  # fmt: skip
            last = h3
        w_out = _weight(out, LAST, O, LP, OP)
        y = tl.dot(last, w_out, input_precision=PRECISION) + _bias(out + LAST * O, O, OP)

        weight_sum += weight
        if is_critic:
            lost, slope = _critic_loss(
                y, output, old_value, target, weight, value_range, value_coefficient, CLIPS_VALUES
            )
            value_sum += lost
        else:
            lost, kl, clipped, entropy, slope, of_row_settings = _actor_loss(
                y, output, there, base, settings, old_log_prob, advantage, weight, clip_range,
                entropy_coefficient, I, O, OP, ACTIONS, SIZES, MASKED, ROWS,
            )  # fmt: skip
            policy_sum += lost
            kl_sum += kl
            clipped_sum += clipped
            entropy_sum += entropy
            of_settings += of_row_settings

        go += tl.dot(tl.trans(last), slope, input_precision=PRECISION)
        co += tl.sum(slope, 0)
        slope = _backward(
            tl.dot(slope, tl.trans(w_out), input_precision=PRECISION), last, ACTIVATION
        )
        if H3 > 0:
            g3 += tl.dot(tl.trans(h2), slope, input_precision=PRECISION)
            c3 += tl.sum(slope, 0)
            back = tl.dot(slope, tl.trans(_weight(w3, H2, H3, P2, P3)), input_precision=PRECISION)
            slope3 = _backward(back, h2, ACTIVATION)
            g2 += tl.dot(tl.trans(h1), slope3, input_precision=PRECISION)
            c2 += tl.sum(slope3, 0)
            back = tl.dot(slope3, tl.trans(_weight(w2, H1, H2, P1, P2)), input_precision=PRECISION)
            slope1 = _backward(back, h1, ACTIVATION)
        elif H2 > 0:
            g2 += tl.dot(tl.trans(h1), slope, input_precision=PRECISION)
            c2 += tl.sum(slope, 0)
            back = tl.dot(slope, tl.trans(_weight(w2, H1, H2, P1, P2)), input_precision=PRECISION)
            slope1 = _backward(back, h1, ACTIVATION)
        else:
            slope1 = slope
        g1 += tl.dot(tl.trans(x), slope1, input_precision=PRECISION)
        c1 += tl.sum(slope1, 0)

        # Stored in every turn: a loop that writes keeps its weights out of registers and of the
        # chip's memory for all.
        metrics = sums + place * 8
        tl.store(metrics, tl.sum(policy_sum))
        tl.store(metrics + 1, tl.sum(value_sum))
        tl.store(metrics + 2, tl.sum(entropy_sum))
        tl.store(metrics + 3, tl.sum(kl_sum))
        tl.store(metrics + 4, tl.sum(clipped_sum))
        tl.store(metrics + 5, tl.sum(weight_sum))

    into = partial + place * PARAMETERS
    _store_layer(into, g1, c1, I, H1, IP, P1)
    if H2 > 0:
        _store_layer(into + I * H1 + H1, g2, c2, H1, H2, P1, P2)
    if H3 > 0:
        _store_layer(into + I * H1 + H1 + LAST1, g3, c3, H2, H3, P2, P3)
    to_output = into + I * H1 + H1 + LAST1 + LAST2
    _store_layer(to_output, go, co, LAST, O, LP, OP)
    if len(SIZES) == 0:
        setting = tl.arange(0, OP)
        tl.store(to_output + LAST * O + O + setting, of_settings, mask=setting < O)


@triton.jit
def loss_kernel(
    outputs, columns, log_std, hyperparameters, slopes, of_log_std, sums, count, members, SETTINGS,
    I: tl.constexpr, O: tl.constexpr, OP: tl.constexpr, ACTIONS: tl.constexpr, SIZES: tl.constexpr,
    MASKED: tl.constexpr, CLIPS_VALUES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """What `gradient_kernel` does between the networks' outputs and their derivatives, for networks
    that are too wide for it: outputs [2 M, count, O]; columns [M, count, _], the rows of the
    minibatch; log_std [M, O], from one member to the next SETTINGS apart -> slopes [2 M, count, O],
    of_log_std [M, parts, O], sums [2 M, parts, 8]."""
    network, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    member, is_critic = network // 2, network % 2 == 1
    clip_range = tl.load(hyperparameters + member)
    value_range = tl.load(hyperparameters + members + member)
    value_coefficient = tl.load(hyperparameters + 2 * members + member)
    entropy_coefficient = tl.load(hyperparameters + 3 * members + member)
    MASK: tl.constexpr = O if MASKED else 0
    WIDTH: tl.constexpr = I + ACTIONS + MASK + 5
    output = tl.arange(0, OP)[None, :]
    settings = log_std + member.to(tl.int64) * SETTINGS
    of_settings = tl.zeros((OP,), tl.float32)
    policy_sum = tl.zeros((ROWS,), tl.float32)
    value_sum, entropy_sum, kl_sum = policy_sum, policy_sum, policy_sum
    clipped_sum, weight_sum = policy_sum, policy_sum
    for block in range(part, tl.cdiv(count, ROWS), parts):
        row = block * ROWS + tl.arange(0, ROWS)
        there = row < count
        base = columns + (member.to(tl.int64) * count + row) * WIDTH
        numbers = base + I + ACTIONS + MASK
        old_log_prob = tl.load(numbers, mask=there, other=0.0)
        advantage = tl.load(numbers + 1, mask=there, other=0.0)
        target = tl.load(numbers + 2, mask=there, other=0.0)
        old_value = tl.load(numbers + 3, mask=there, other=0.0)
        weight = tl.load(numbers + 4, mask=there, other=0.0)
        weight_sum += weight
        place = (network.to(tl.int64) * count + row)[:, None] * O + output
        inside = there[:, None] & (output < O)
        y = tl.load(outputs + place, mask=inside, other=0.0)
        if is_critic:
            lost, slope = _critic_loss(
                y, output, old_value, target, weight, value_range, value_coefficient, CLIPS_VALUES
            )
            value_sum += lost
        else:
            lost, kl, clipped, entropy, slope, of_row_settings = _actor_loss(
                y, output, there, base, settings, old_log_prob, advantage, weight, clip_range,
                entropy_coefficient, I, O, OP, ACTIONS, SIZES, MASKED, ROWS,
            )  # fmt: skip
            policy_sum += lost
            kl_sum += kl
            clipped_sum += clipped
            entropy_sum += entropy
            of_settings += of_row_settings
        tl.store(slopes + place, slope, mask=inside)
    metrics = sums + (network * parts + part) * 8
    tl.store(metrics, tl.sum(policy_sum))
    tl.store(metrics + 1, tl.sum(value_sum))
    tl.store(metrics + 2, tl.sum(entropy_sum))
    tl.store(metrics + 3, tl.sum(kl_sum))
    tl.store(metrics + 4, tl.sum(clipped_sum))
    tl.store(metrics + 5, tl.sum(weight_sum))
    if len(SIZES) == 0:
        setting = tl.arange(0, OP)
        of_own = of_log_std + (member * parts + part) * O
        tl.store(of_own + setting, of_settings, mask=(setting < O) & (network % 2 == 0))


@triton.jit
def _sum(sums, network, column, parts, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    return tl.sum(
        tl.load(sums + (network * parts + part) * 8 + column, mask=part < parts, other=0.0)
    )


@triton.jit
def reduce_kernel(
    partial, sums, gradient, squares, parts, sum_parts, PARAMETERS: tl.constexpr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sum over parts over the sum of weights: gradient [M, 2 PARAMETERS], and the sums of its
    squares by block, squares [M, blocks]."""
    member, block = tl.program_id(0), tl.program_id(1)
    element = block * BLOCK + tl.arange(0, BLOCK)
    there = element < 2 * PARAMETERS
    network = 2 * member + element // PARAMETERS
    start = network.to(tl.int64) * parts * PARAMETERS + element % PARAMETERS
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(parts):
        total += tl.load(partial + start, mask=there, other=0.0)
        start += PARAMETERS
    total = total / tl.maximum(_sum(sums, 2 * member, 5, sum_parts, PARTS), 1e-8)
    tl.store(gradient + member * 2 * PARAMETERS + element, total, mask=there)
    tl.store(squares + member * tl.num_programs(1) + block, tl.sum(total * total))


@triton.jit
def adam_kernel(
    parameters, first_moment, second_moment, gradient, squares, sums, before, after,
    hyperparameters, parts, members, PARAMETERS: tl.constexpr, PARTS: tl.constexpr,
    BLOCKS: tl.constexpr, ADAPTS: tl.constexpr, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What `OnPolicy._step` does with a gradient. before, after [M, 16] float64, the state;
    hyperparameters [5, M]: the rate by schedule, the agent's own, the longest gradient, the desired
    and the greatest KL divergence."""
    member, block = tl.program_id(0), tl.program_id(1)
    blocks = tl.num_programs(1)
    state = before + member * 16
    was_active, was_learning = tl.load(state) > 0, tl.load(state + 1) > 0
    factor, steps, taken = tl.load(state + 2), tl.load(state + 3), tl.load(state + 10)
    rate = tl.load(hyperparameters + member)
    own_rate = tl.load(hyperparameters + members + member)
    longest = tl.load(hyperparameters + 2 * members + member)
    desired_kl = tl.load(hyperparameters + 3 * members + member)
    target_kl = tl.load(hyperparameters + 4 * members + member)

    weight = tl.maximum(_sum(sums, 2 * member, 5, parts, PARTS), 1e-8)
    policy_loss = _sum(sums, 2 * member, 0, parts, PARTS) / weight
    value_loss = _sum(sums, 2 * member + 1, 1, parts, PARTS) / weight
    entropy = _sum(sums, 2 * member, 2, parts, PARTS) / weight
    kl = _sum(sums, 2 * member, 3, parts, PARTS) / weight
    clipped = _sum(sums, 2 * member, 4, parts, PARTS) / weight
    place = tl.arange(0, BLOCKS)
    norm = tl.sqrt(
        tl.sum(tl.load(squares + member * blocks + place, mask=place < blocks, other=0.0))
    )
    total = policy_loss + value_loss + entropy + kl + clipped
    finite = (norm < float("inf")) & (total == total)

    learning = was_learning & finite
    if ADAPTS:
        present = own_rate * factor.to(tl.float32)
        changed = tl.where(kl > 2 * desired_kl, present / _RATE_FACTOR, present)
        changed = tl.where(kl < desired_kl / 2, present * _RATE_FACTOR, changed)
        changed = tl.minimum(tl.maximum(changed, _LEAST_RATE), _GREATEST_RATE)
        moves = learning & (taken > 0) & (desired_kl > 0)
        factor = tl.where(moves, (changed / own_rate).to(tl.float64), factor)
        rate = rate * factor.to(tl.float32)
    learning = learning & ((target_kl <= 0) | (kl <= 1.5 * target_kl))
    next_step = steps + 1
    scale = tl.minimum(longest / tl.maximum(norm, 1e-6), 1.0)

    element = block * BLOCK + tl.arange(0, BLOCK)
    there = element < tl.where(learning, 2 * PARAMETERS, 0)
    index = member.to(tl.int64) * (2 * PARAMETERS) + element
    slope = tl.load(gradient + index, mask=there, other=0.0) * scale
    mean = tl.load(first_moment + index, mask=there, other=0.0)
    mean += (1 - BETA1) * (slope - mean)
    square = (
        BETA2 * tl.load(second_moment + index, mask=there, other=0.0) + (1 - BETA2) * slope * slope
    )
    step_size = (rate / (1 - tl.exp(next_step * LOG_BETA1))).to(tl.float32)
    root = (1 / tl.sqrt(1 - tl.exp(next_step * LOG_BETA2))).to(tl.float32)
    old = tl.load(parameters + index, mask=there, other=0.0)
    tl.store(
        parameters + index, old - step_size * mean / (tl.sqrt(square) * root + EPSILON), mask=there
    )
    tl.store(first_moment + index, mean, mask=there)
    tl.store(second_moment + index, square, mask=there)

    if block == 0:
        into = after + member * 16
        tl.store(into, (was_active & (finite | (was_learning == 0))).to(tl.float64))
        tl.store(into + 1, learning.to(tl.float64))
        tl.store(into + 2, factor)
        tl.store(into + 3, tl.where(learning, next_step, steps))
        tl.store(into + 4, tl.load(state + 4) + tl.where(learning, policy_loss, 0.0))
        tl.store(into + 5, tl.load(state + 5) + tl.where(learning, value_loss, 0.0))
        tl.store(into + 6, tl.load(state + 6) + tl.where(learning, entropy, 0.0))
        tl.store(into + 7, tl.load(state + 7) + tl.where(learning, kl, 0.0))
        tl.store(into + 8, tl.load(state + 8) + tl.where(learning, clipped, 0.0))
        tl.store(into + 9, tl.load(state + 9) + tl.where(learning, norm, 0.0))
        tl.store(into + 10, taken + tl.where(learning, 1.0, 0.0))
