"""Owns the recurrences over time: generalized advantages and running discounted returns, without a loop over steps.

Tensors are [T, N]: T steps of N environments side by side.
"""

import torch
from torch import Tensor


def linear_scan(value: Tensor, coefficient: Tensor) -> Tensor:
    """Solves x_t = value_t + coefficient_t x_{t+1} for all t, with x_T = 0.

    Recursive doubling (Hillis and Steele 1986; Blelloch 1990, section 1.4): after k rounds every row holds the sum of
    its next 2^k terms and the product of their coefficients, so ceil(log2 T) rounds of whole-tensor operations replace
    T. Lanes never mix.

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
    """Generalized advantage estimation (Schulman et al. 2016, equations 11, 12 and 16).

        delta_t = r_t + discount V(s_{t+1}) [not terminated_t] - V(s_t)
        A_t     = delta_t + discount gae_lambda A_{t+1} [neither terminated_t nor truncated_t]

    A terminated episode is worth nothing afterwards. A truncated one would have gone on: it is worth the value of its
    final observation (Pardo et al. 2018, equation 6). Where both are set, termination decides.

    Args:
        reward: [T, N].
        value: [T, N], V(s_t).
        next_value: [T, N], V(s_{t+1}): of the final observation where an episode was truncated, of the next row
            elsewhere (of what the last step left behind in the last row). Ignored where terminated.
        terminated: [T, N] bool.
        truncated: [T, N] bool.
        discount: Gamma, of one step.
        gae_lambda: Lambda: 0 trusts the values alone, 1 the rewards alone.

    Returns:
        A: [T, N].
    """
    residual = reward + discount * next_value.masked_fill(terminated, 0.0) - value
    decay = torch.full_like(reward, discount * gae_lambda).masked_fill_(terminated | truncated, 0.0)
    return linear_scan(residual, decay)


def discounted_returns(reward: Tensor, done: Tensor, discount: float, carry: Tensor) -> tuple[Tensor, Tensor]:
    """The discounted return of each episode so far, oldest reward discounted most, as used to scale rewards.

        R_t = r_t + discount R_{t-1} [not done_{t-1}]

    With discount 1 this is the undiscounted return so far, and with a reward of 1 the length so far.

    Args:
        reward: [T, N].
        done: [T, N] bool, terminated or truncated.
        discount: Of one step.
        carry: [N], what the previous rollout handed on: R of its last row, zero where an episode ended there.

    Returns:
        R: [T, N], the dtype of `carry`; and the carry for the next rollout: [N].
    """
    decay = torch.full_like(done, discount, dtype=carry.dtype).masked_fill_(done, 0.0)
    value = reward.to(carry.dtype, copy=True)
    value[0] += discount * carry
    # Time runs forwards here, so the scan runs over flipped rows, and each row is decayed by the one before it.
    coefficient = torch.cat((torch.zeros_like(decay[:1]), decay[:-1]))
    running = linear_scan(value.flip(0), coefficient.flip(0)).flip(0)
    return running, running[-1].masked_fill(done[-1], 0.0)
