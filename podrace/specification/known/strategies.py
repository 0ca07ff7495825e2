"""Lists the evolution strategies that a specification can name."""

from collections.abc import Mapping

STRATEGIES: Mapping[str, str] = {
    "incumbent": "the best trial continues; the other pods train challengers, and the best of these are promoted",
    "asha": "every trial is fresh; the best of each rung are promoted to one that is longer (ASHA, Li et al. 2020)",
    "bohb": "as asha, with values that a model of the earlier trials proposes (BOHB, Falkner et al. 2018)",
    "tournament": "the best of a few candidates drawn at random becomes the parent; its hyperparameters mutate",
    "softmax": "the higher the score of a candidate, the more likely it becomes the parent; its hyperparameters mutate",
    "truncation": "the worst of a population restart from the best, perturbed (PBT, Jaderberg et al. 2017)",
    "dexpbt": "as truncation, if the gap in score is significant and experience is comparable (Petrenko et al. 2023)",
    "mf-pbt": "as truncation, in sub-populations of different frequency that exchange agents (Doulazmi et al. 2025)",
    "fire-pbt": "as truncation, partly by how fast networks improve, not by scores (Dalibard and Jaderberg 2021)",
    "pb2": "as truncation, with hyperparameters that bandits choose (Parker-Holder et al. 2020 and 2021)",
    "gpbt": "a population in pairs; the worse of a pair learns from the better (Bai and Cheng 2024)",
    "generational": "every generation restarts from the best earlier candidate (FinRL-Podracer, Li et al. 2021)",
    "random-search": "every agent is fresh; the baseline for the other strategies",
}
