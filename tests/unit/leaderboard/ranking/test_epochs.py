"""Epoch effects are found from policies that were scored in several epochs, and are 0 where nothing is known."""

import math
from random import Random
from statistics import fmean

import pytest

from leaderboard.ranking.epochs import EpochResult, epoch_effects


def anchor(*scores: tuple[int, float], error: float = 1.0) -> list[EpochResult]:
    return [EpochResult(epoch, score, error) for epoch, score in scores]


def test_without_anchors_there_are_no_effects():
    assert epoch_effects([], 0.8) == {}
    assert epoch_effects([anchor((1, 50.0))], 0.8) == {}


def test_episodes_that_do_not_correlate_have_no_effects():
    assert epoch_effects([anchor((0, 1.0), (1, 9.0))], 0.0) == {}


def test_one_anchor_is_shrunk_by_the_prior():
    # b = 8 by the anchor, with the variance 2 (1 - r) s^2 = 1; by the prior 0, with the variance r s^2 = 0.5.
    effects = epoch_effects([anchor((0, 1.0), (1, 9.0))], 0.5)
    assert effects == {1: pytest.approx(8.0 * 0.5 / (0.5 + 1.0))}


def test_many_anchors_give_the_mean_difference():
    anchors = [anchor((0, float(policy)), (1, policy + 3.0)) for policy in range(500)]
    assert epoch_effects(anchors, 0.5)[1] == pytest.approx(3.0, rel=0.01)


def test_epochs_are_connected_by_chains_of_anchors():
    anchors = [anchor((0, 0.0), (1, 2.0)), anchor((1, 5.0), (2, 4.0)), anchor((2, 9.0), (3, 13.0))] * 300
    effects = epoch_effects(anchors, 0.9)
    assert [effects[epoch] for epoch in (1, 2, 3)] == [pytest.approx(value, abs=0.05) for value in (2.0, 1.0, 5.0)]


def test_an_epoch_without_a_connection_keeps_the_effect_0():
    assert 4 not in epoch_effects([anchor((0, 0.0), (1, 2.0)), anchor((4, 7.0))], 0.9)


def test_noisier_scores_count_less():
    precise, noisy = anchor((0, 0.0), (1, 1.0), error=0.1), anchor((0, 0.0), (1, 9.0), error=10.0)
    assert epoch_effects([precise, noisy], 0.9)[1] < 2.0


def test_deterministic_scores_need_no_special_case():
    effects = epoch_effects([anchor((0, 5.0), (1, 5.0), error=0.0)], 0.9)
    assert effects[1] == pytest.approx(0.0)


def test_the_shrunk_effects_have_less_error_than_none_and_than_raw_differences():
    # 3 policies in each pair of neighboring epochs; scores have the variance 1, of which 0.6 is common to an epoch.
    random, share = Random(4), 0.6
    errors = {"model": [], "none": [], "raw": []}
    for _ in range(400):
        true = [0.0] + [random.gauss(0, math.sqrt(share)) for _ in range(3)]
        anchors = []
        for epoch in (1, 2, 3):
            for _ in range(3):
                policy = random.gauss(0, 5)
                noisy = [(e, policy + true[e] + random.gauss(0, math.sqrt(1 - share))) for e in (epoch - 1, epoch)]
                anchors.append(anchor(*noisy))
        effects = epoch_effects(anchors, share)
        raw = fmean(one[1].score - one[0].score for one in anchors[:3])
        errors["model"].append((effects[1] - true[1]) ** 2)
        errors["none"].append(true[1] ** 2)
        errors["raw"].append((raw - true[1]) ** 2)
    assert fmean(errors["model"]) < 0.6 * fmean(errors["none"])
    assert fmean(errors["model"]) < fmean(errors["raw"])
