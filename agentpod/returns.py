"""Computes recurrences over time without a loop over steps: generalized advantages and running discounted returns.

Tensors are [T, N]: T steps of N environments side by side.
"""

import torch
from torch import Tensor


def linear_scan(value: Tensor, coefficient: Tensor) -> Tensor:
    """Solves x_t = value_t + coefficient_t x_{t+1} for all t, with x_T = 0.

    Uses recursive doubling (Hillis and Steele 1986; Blelloch 1990, section 1.4). After k rounds every row holds the sum
    of its next 2^k terms and the product of their coefficients. Thus ceil(log2 T) rounds of whole-tensor operations
    replace a loop over T steps. Environments do not mix.

    Args:
        value: [T, N] floating point.
        coefficient: [T, N], same dtype.

    Returns:
        x: [T, N], same dtype.
    """
    total, product = value.clone(), coefficient.clone()
    span = 1
    while span < len(total):
        total[:-span] += product[:-span] * total[span:]
        if 2 * span < len(total):
            product[:-span] = product[:-span] * product[span:]
        span *= 2
    return total


def generalized_advantages(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    discount: float,
    gae_lambda: float,
) -> Tensor:
    """Computes generalized advantage estimates (Schulman et al. 2016, arXiv 1506.02438, equations 11, 12 and 16).

        delta_t = r_t + discount V(s_{t+1}) [not terminated_t] - V(s_t)
        A_t     = delta_t + discount gae_lambda A_{t+1} [neither terminated_t nor truncated_t]

    The value after a termination is 0. After a truncation, the value of the final observation is bootstrapped from
    (Pardo et al. 2018, arXiv 1712.00378, equation 6). Where both flags are set, termination takes precedence.

    Args:
        reward: [T, N].
        value: [T, N], V(s_t).
        next_value: [T, N], V(s_{t+1}). Where an episode was truncated, the value of its final observation; elsewhere
            the value of the next row, or in the last row of the observation after the last step. Ignored where
            terminated.
        terminated: [T, N] bool.
        truncated: [T, N] bool.
        discount: Gamma, per step.
        gae_lambda: Lambda: 0 relies on the values alone, 1 on the rewards alone.

    Returns:
        A: [T, N].
    """
    residual = reward + discount * next_value.masked_fill(terminated, 0.0) - value
    decay = torch.full_like(reward, discount * gae_lambda).masked_fill_(terminated | truncated, 0.0)
    return linear_scan(residual, decay)


def discounted_returns(reward: Tensor, done: Tensor, discount: float, carry: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the running discounted return of each episode, in which the oldest reward is discounted most.

        R_t = r_t + discount R_{t-1} [not done_{t-1}]

    Reward scaling uses its variance. With discount 1 it is the undiscounted return so far, and with rewards of 1 the
    episode length so far.

    Args:
        reward: [T, N].
        done: [T, N] bool, terminated or truncated.
        discount: Per step.
        carry: [N], the carry that the previous rollout returned: R of its last row, 0 where an episode ended there.

    Returns:
        R: [T, N], in the dtype of `carry`; and the carry for the next rollout: [N].
    """
    decay = torch.full_like(done, discount, dtype=carry.dtype).masked_fill_(done, 0.0)
    value = reward.to(carry.dtype, copy=True)
    value[0] += discount * carry
    # linear_scan accumulates backwards, so rows are flipped; each row is decayed by the `done` of the row before it.
    coefficient = torch.cat((torch.zeros_like(decay[:1]), decay[:-1]))
    running = linear_scan(value.flip(0), coefficient.flip(0)).flip(0)
    return running, running[-1].masked_fill(done[-1], 0.0)
