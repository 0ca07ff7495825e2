"""The losses of every algorithm in float64, written from the papers' equations and differentiated automatically.

The hand-written gradients of agentpod are compared with this module, which does not import it. Both use these names:
`"<name>.<layer>.weight"` [out, in] and `"<name>.<layer>.bias"` [out], with a leading [C] for an ensemble of C critics.
Targets of a regression are constants, and so are critics in the loss of an actor.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Independent

Tensors = Mapping[str, Tensor]
Layers = list[tuple[Tensor, Tensor]]

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "elu": torch.nn.functional.elu}
LOG_STD_RANGE = (-20.0, 2.0)


class Batch(NamedTuple):
    """Transitions over m <= n steps from a replay buffer."""

    observation: Tensor  # [B, D]
    action: Tensor  # [B] int64, or [B, A] in [-1, 1]
    reward: Tensor  # [B], sum of gamma^k r_k over the m steps
    discount: Tensor  # [B], gamma^m; 0 where terminated
    next_observation: Tensor  # [B, D]
    weight: Tensor  # [B], importance weights (Schaul et al. 2016, section 3.4)


def layers_of(tensors: Tensors, name: str) -> Layers:
    """Returns weights and biases of the layers of `name`, first to last."""
    count = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in tensors)
    layers = [(tensors[f"{name}.{layer}.weight"], tensors[f"{name}.{layer}.bias"]) for layer in range(count)]
    assert layers, f"no layers of {name!r} among {sorted(tensors)}"
    assert all(weight.dtype == bias.dtype == torch.float64 for weight, bias in layers), f"{name!r} is not float64"
    return layers


def perceptron(layers: Layers, x: Tensor, activation: str) -> Tensor:
    """Returns [B, out] for x [B, in]; [C, B, out] for an ensemble."""
    for i, (weight, bias) in enumerate(layers):
        x = torch.einsum("...oi,...bi->...bo", weight, x) + bias.unsqueeze(-2)
        x = ACTIVATIONS[activation](x) if i + 1 < len(layers) else x
    return x


def constant(tensors: Tensors) -> dict[str, Tensor]:
    """Returns the same parameters, detached."""
    return {name: tensor.detach() for name, tensor in tensors.items()}


def ensemble_outputs(tensors: Tensors, x: Tensor, activation: str) -> Tensor:
    """Returns [C, B, out] of "critic" for x [B, in]; a single critic is an ensemble of one."""
    outputs = perceptron(layers_of(tensors, "critic"), x, activation)
    return outputs.reshape(-1, *outputs.shape[-2:])


def critic_values(tensors: Tensors, observation: Tensor, action: Tensor, activation: str) -> Tensor:
    """Returns Q_c(s, a): [C, B]; the inputs are the observation, then the action."""
    return ensemble_outputs(tensors, torch.cat((observation, action), -1), activation).squeeze(-1)


def reduced(values: Tensor, reduce: str, subset: Sequence[int] | None = None) -> Tensor:
    """Reduces the values of C critics: [C, B, ...] -> [B, ...].

    "min" is clipped double Q-learning (Fujimoto et al. 2018, equation 10), over a subset of critics the in-target
    minimization of REDQ (Chen et al. 2021, algorithm 1). REDQ's actor maximizes the "mean", TD3's the "first".
    """
    values = values if subset is None else values[list(subset)]
    return {"min": values.amin(0), "mean": values.mean(0), "first": values[0]}[reduce]


def squared_errors(values: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the sum over critics of mean_b w_b (Q_c - y)^2, and the errors Q_c - y: [C, B]."""
    errors = values - y.detach()
    return (weight * errors**2).mean(1).sum(), errors


def dueling(outputs: Tensor) -> Tensor:
    """Returns Q = V + A - mean A (Wang et al. 2016, equation 9): [B, n] from [B, 1 + n], V first."""
    value, advantage = outputs[..., :1], outputs[..., 1:]
    return value + advantage - advantage.mean(-1, keepdim=True)


def huber(error: Tensor, delta: float) -> Tensor:
    """Huber 1964: quadratic up to delta, linear beyond; the derivative is the error, clipped to +-delta."""
    if delta == math.inf:
        return 0.5 * error**2
    return torch.where(error.abs() <= delta, 0.5 * error**2, delta * (error.abs() - 0.5 * delta))


def action_values(tensors: Tensors, observation: Tensor, activation: str, name: str, is_dueling: bool) -> Tensor:
    """Returns Q(s, .): [B, n]."""
    outputs = perceptron(layers_of(tensors, name), observation, activation)
    return dueling(outputs) if is_dueling else outputs


def dqn_loss(
    online: Tensors,
    target: Tensors,
    batch: Batch,
    *,
    activation: str,
    is_double: bool = False,
    is_dueling: bool = False,
    delta: float = math.inf,
    name: str = "critic",
) -> tuple[Tensor, Tensor]:
    """Mnih et al. 2015, algorithm 1; the online network selects the action of y if double (van Hasselt et al. 2016).

        y = r + discount Q_target(s', a*)        loss = mean_b w_b huber(Q(s, a) - y)
    Returns the loss [], and the errors Q(s, a) - y [B].
    """
    value = action_values(online, batch.observation, activation, name, is_dueling)
    following = action_values(target, batch.next_observation, activation, name, is_dueling)
    chooser = action_values(online, batch.next_observation, activation, name, is_dueling) if is_double else following
    rows = torch.arange(len(batch.action))
    y = batch.reward + batch.discount * following[rows, chooser.argmax(1)]
    errors = value[rows, batch.action] - y.detach()
    return (batch.weight * huber(errors, delta)).mean(), errors


def deterministic_action(tensors: Tensors, observation: Tensor, activation: str) -> Tensor:
    """Returns a = tanh(actor(s)): [B, A]."""
    return torch.tanh(perceptron(layers_of(tensors, "actor"), observation, activation))


def smoothed(action: Tensor, disturbance: Tensor, bound: float) -> Tensor:
    """Target policy smoothing: clip(a + clip(disturbance, +-bound), +-1) (Fujimoto et al. 2018, section 5.3)."""
    return (action + disturbance.clamp(-bound, bound)).clamp(-1.0, 1.0)


def deterministic_critic_loss(
    online: Tensors,
    target: Tensors,
    batch: Batch,
    *,
    activation: str,
    reduce: str = "min",
    noise: Tensor | None = None,
    deviation: float = 0.0,
    bound: float = math.inf,
) -> tuple[Tensor, Tensor]:
    """Without noise the loss of DDPG (Lillicrap et al. 2016, equations 4 and 5), y from the target actor and critics.

    With standard normal `noise` [B, A] that of TD3 (Fujimoto et al. 2018, algorithm 1). Returns loss [], errors [C, B].
    """
    following = deterministic_action(target, batch.next_observation, activation)
    if noise is not None:
        following = smoothed(following, noise * deviation, bound)
    values = critic_values(target, batch.next_observation, following, activation)
    y = batch.reward + batch.discount * reduced(values, reduce)
    return squared_errors(critic_values(online, batch.observation, batch.action, activation), y, batch.weight)


def deterministic_actor_loss(online: Tensors, observation: Tensor, *, activation: str, reduce: str = "first") -> Tensor:
    """- mean Q(s, pi(s)) (Silver et al. 2014, equation 9; Lillicrap et al. 2016, equation 6)."""
    action = deterministic_action(online, observation, activation)
    return -reduced(critic_values(constant(online), observation, action, activation), reduce).mean()


def gaussian_log_prob(value: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Returns the sum over the last dimension of log N(value; mean, exp(log_std)^2)."""
    return (-0.5 * ((value - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def squashed_sample(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """a = tanh(u), u = mean + std noise, and log pi(a | s) (Haarnoja et al. 2018b, appendix C).

        log pi = sum_i log N(u_i) - log(1 - a_i^2)        log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u))

    The right-hand form (of sech(u)^2 = 4 e^{-2u} / (1 + e^{-2u})^2) loses no precision where a rounds to +-1.
    `outputs` [B, 2 A] are the mean, then log_std before it is clamped; `noise` [B, A] is standard normal.
    Returns a [B, A] and log pi [B].
    """
    mean, log_std = outputs.chunk(2, -1)
    log_std = log_std.clamp(*LOG_STD_RANGE)
    u = mean + log_std.exp() * noise
    # torch's softplus is linear above 20, where the difference is still visible in float64.
    log_slope = 2.0 * (math.log(2.0) - u - torch.logaddexp(-2.0 * u, torch.zeros_like(u)))
    log_density = -0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi)
    return torch.tanh(u), (log_density - log_slope).sum(-1)


def sac_critic_loss(
    online: Tensors,
    target: Tensors,
    batch: Batch,
    *,
    activation: str,
    alpha: float,
    noise: Tensor,
    reduce: str = "min",
    subset: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Haarnoja et al. 2018b, equations 3 and 5; a' is the online actor's. Returns loss [], errors [C, B].

    y = r + discount (reduce_c Q_target_c(s', a') - alpha log pi(a' | s'))
    """
    outputs = perceptron(layers_of(online, "actor"), batch.next_observation, activation)
    action, log_prob = squashed_sample(outputs, noise)
    values = critic_values(target, batch.next_observation, action, activation)
    y = batch.reward + batch.discount * (reduced(values, reduce, subset) - alpha * log_prob)
    return squared_errors(critic_values(online, batch.observation, batch.action, activation), y, batch.weight)


def sac_actor_loss(
    online: Tensors, observation: Tensor, *, activation: str, alpha: float, noise: Tensor, reduce: str = "min"
) -> Tensor:
    """mean(alpha log pi(a | s) - reduce_c Q_c(s, a)), a reparametrized (Haarnoja et al. 2018b, equation 9)."""
    action, log_prob = squashed_sample(perceptron(layers_of(online, "actor"), observation, activation), noise)
    value = reduced(critic_values(constant(online), observation, action, activation), reduce)
    return (alpha * log_prob - value).mean()


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float, of: str = "log_alpha") -> Tensor:
    """Haarnoja et al. 2018b, equation 18 (Christodoulou 2019, equation 11, if `log_prob` is the expected one).

    The paper's mean(-alpha (log pi + target)) if `of` "alpha", else mean(-log_alpha (log pi + target)), whose gradient
    does not shrink with alpha. Both are to be differentiated with respect to log_alpha []; log_prob [B] is a constant.
    """
    factor = {"log_alpha": log_alpha, "alpha": log_alpha.exp()}[of]
    return (-factor * (log_prob.detach() + target_entropy)).mean()


def expected_log_prob(logits: Tensor) -> Tensor:
    """Returns sum_a pi(a | s) log pi(a | s), the negative entropy: [B] from logits [B, n]."""
    log_prob = logits.log_softmax(-1)
    return (log_prob.exp() * log_prob).sum(-1)


def discrete_soft_value(logits: Tensor, values: Tensor, alpha: float) -> Tensor:
    """V(s) = sum_a pi(a | s) (Q(s, a) - alpha log pi(a | s)) (Christodoulou 2019, equation 10): [B] from two [B, n]."""
    log_prob = logits.log_softmax(-1)
    return (log_prob.exp() * (values - alpha * log_prob)).sum(-1)


def discrete_sac_critic_loss(
    online: Tensors, target: Tensors, batch: Batch, *, activation: str, alpha: float, reduce: str = "min"
) -> tuple[Tensor, Tensor]:
    """Christodoulou 2019, algorithm 1 and equation 10: y = r + discount V(s'). Returns loss [], errors [C, B]."""
    logits = perceptron(layers_of(online, "actor"), batch.next_observation, activation)
    following = reduced(ensemble_outputs(target, batch.next_observation, activation), reduce)
    y = batch.reward + batch.discount * discrete_soft_value(logits, following, alpha)
    values = ensemble_outputs(online, batch.observation, activation)
    return squared_errors(values[:, torch.arange(len(batch.action)), batch.action], y, batch.weight)


def discrete_sac_actor_loss(
    online: Tensors, observation: Tensor, *, activation: str, alpha: float, reduce: str = "min"
) -> Tensor:
    """mean_b sum_a pi (alpha log pi - reduce_c Q_c) (Christodoulou 2019, equation 12)."""
    logits = perceptron(layers_of(online, "actor"), observation, activation)
    values = reduced(ensemble_outputs(constant(online), observation, activation), reduce)
    return -discrete_soft_value(logits, values, alpha).mean()


def log_prob_and_entropy(
    tensors: Tensors, outputs: Tensor, action: Tensor, choices: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """Returns log pi(a | s) and H(pi(. | s)), [B] each.

    A diagonal Gaussian if there is a "log_std"; one categorical variable for each of `choices`; Bernoulli variables
    where outputs and actions have one shape; else categorical.
    """
    if choices:
        parts = [Categorical(logits=part) for part in outputs.split(list(choices), -1)]
        log_probs = [part.log_prob(chosen) for part, chosen in zip(parts, action.unbind(-1), strict=True)]
        return torch.stack(log_probs).sum(0), torch.stack([part.entropy() for part in parts]).sum(0)
    if "log_std" not in tensors and outputs.shape == action.shape:
        flags = Independent(Bernoulli(logits=outputs), 1)
        return flags.log_prob(action.double()), flags.entropy()
    if "log_std" in tensors:
        log_std = tensors["log_std"].expand_as(outputs)
        entropy = (0.5 * math.log(2 * math.pi * math.e) + log_std).sum(-1)
        return gaussian_log_prob(action, outputs, log_std), entropy
    log_prob = outputs.log_softmax(-1)
    return log_prob[torch.arange(len(action)), action], -expected_log_prob(outputs)


def standardized(advantage: Tensor) -> Tensor:
    """Scales to mean 0 and standard deviation 1, with the population variance of the batch."""
    centred = advantage - advantage.mean()
    return centred / (centred.square().mean().sqrt() + 1e-8)


def a2c_loss(
    tensors: Tensors,
    observation: Tensor,
    action: Tensor,
    advantage: Tensor,
    value_target: Tensor,
    *,
    activation: str,
    entropy_coefficient: float,
    value_coefficient: float,
    standardize: bool = False,
    choices: Sequence[int] = (),
) -> Tensor:
    """- mean(log pi A) - c_e mean H + c_v mean (V - R)^2 (Mnih et al. 2016, algorithm S3)."""
    outputs = perceptron(layers_of(tensors, "actor"), observation, activation)
    value = perceptron(layers_of(tensors, "critic"), observation, activation)[:, 0]
    log_prob, entropy = log_prob_and_entropy(tensors, outputs, action, choices)
    advantage = standardized(advantage) if standardize else advantage
    policy_loss = -(log_prob * advantage.detach()).mean() - entropy_coefficient * entropy.mean()
    return policy_loss + value_coefficient * ((value - value_target.detach()) ** 2).mean()


class GatedRecurrentUnit(NamedTuple):
    """Parameters of a GRU in torch's order of gates: reset, update, new."""

    input_weight: Tensor  # [3 H, D]
    state_weight: Tensor  # [3 H, H]
    input_bias: Tensor  # [3 H]
    state_bias: Tensor  # [3 H]

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        """Returns h' [B, H] (Cho et al. 2014, equations 5 to 8; r after the product, as in their first version)."""
        x_reset, x_update, x_new = (x @ self.input_weight.mT + self.input_bias).chunk(3, -1)
        h_reset, h_update, h_new = (state @ self.state_weight.mT + self.state_bias).chunk(3, -1)
        reset, update = torch.sigmoid(x_reset + h_reset), torch.sigmoid(x_update + h_update)
        return (1.0 - update) * torch.tanh(x_new + reset * h_new) + update * state

    def unroll(self, x: Tensor, state: Tensor, is_first: Tensor) -> Tensor:
        """Returns states [T, B, H] for x [T, B, D] from `state` [B, H]; zeroed before steps of is_first [T, B]."""
        states = []
        for inputs, first in zip(x, is_first, strict=True):
            state = self.step(inputs, torch.where(first.unsqueeze(-1), 0.0, state))
            states.append(state)
        return torch.stack(states)


class Transition(NamedTuple):
    """One step of one environment."""

    reward: float
    terminated: bool = False
    truncated: bool = False


class NStepReturn(NamedTuple):
    """Terms of y = reward + discount V(next_observation of transition `last`)."""

    reward: float
    discount: float
    last: int
    steps: int


def n_step_return(transitions: Sequence[Transition], start: int, n: int, gamma: float) -> NStepReturn:
    """Sutton and Barto 2018, equation 7.1, truncated at the end of an episode or of the list.

    After a termination the discount is 0. After a truncation the return bootstraps from gamma^m times the value of the
    final observation (Pardo et al. 2018, equation 6). Where both are set, termination takes precedence.
    """
    total, factor = 0.0, 1.0
    for last in range(start, min(start + n, len(transitions))):
        total += factor * transitions[last].reward
        factor *= gamma
        if transitions[last].terminated:
            factor = 0.0
        if transitions[last].terminated or transitions[last].truncated:
            break
    return NStepReturn(total, factor, last, last - start + 1)


def polyak_averaged(target: Tensors, online: Tensors, tau: float) -> dict[str, Tensor]:
    """target <- tau online + (1 - tau) target (Lillicrap et al. 2016, algorithm 1)."""
    return {name: tau * online[name] + (1.0 - tau) * tensor for name, tensor in target.items()}


def norm_clipped(gradient: Tensor, maximum_norm: float) -> Tensor:
    """Scales gradients with a larger norm down to maximum_norm (Pascanu et al. 2013, algorithm 1)."""
    norm = gradient.square().sum().sqrt()
    return gradient * maximum_norm / norm if norm > maximum_norm else gradient


def adam(
    parameters: Tensor,
    gradients: Iterable[Tensor],
    *,
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    maximum_norm: float = math.inf,
) -> list[Tensor]:
    """Kingma and Ba 2015, algorithm 1: the parameters [P] after each of the gradients [P], which are clipped first."""
    first, second = torch.zeros_like(parameters), torch.zeros_like(parameters)
    path = []
    for step, gradient in enumerate(gradients, start=1):
        clipped = norm_clipped(gradient, maximum_norm)
        first = betas[0] * first + (1 - betas[0]) * clipped
        second = betas[1] * second + (1 - betas[1]) * clipped**2
        unbiased_first, unbiased_second = first / (1 - betas[0] ** step), second / (1 - betas[1] ** step)
        parameters = parameters - learning_rate * unbiased_first / (unbiased_second.sqrt() + epsilon)
        path.append(parameters)
    return path


def gaussian_divergence(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """KL(p || q) of diagonal Gaussians p and "other" q [B, A] (Kullback and Leibler 1951): [B]."""
    variance, other_variance = (2.0 * log_std).exp(), (2.0 * other_log_std).exp()
    square = (variance + (mean - other_mean) ** 2) / (2.0 * other_variance)
    return (other_log_std - log_std + square - 0.5).sum(-1)


def categorical_divergence(logits: Tensor, other_logits: Tensor) -> Tensor:
    """KL(p || q) of categoricals with logits [B, n] (Kullback and Leibler 1951): [B]."""
    log_prob, other_log_prob = logits.log_softmax(-1), other_logits.log_softmax(-1)
    return (log_prob.exp() * (log_prob - other_log_prob)).sum(-1)
