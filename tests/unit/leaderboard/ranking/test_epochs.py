"""Epoch effects are found from policies that were scored in several epochs, and are 0 where nothing is known."""

import math
from random import Random
from statistics import fmean

import pytest

from leaderboard.ranking.epochs import EpochEffects, EpochResult, epoch_effects


def anchor(*scores: tuple[int, float], error: float = 1.0) -> list[EpochResult]:
    return [EpochResult(epoch, score, error) for epoch, score in scores]


def test_without_anchors_there_are_no_effects():
    assert epoch_effects([], 0.8) == EpochEffects()
    assert epoch_effects([anchor((1, 50.0))], 0.8) == EpochEffects()


def test_episodes_that_do_not_correlate_have_no_effects():
    assert epoch_effects([anchor((0, 1.0), (1, 9.0))], 0.0) == EpochEffects()


def test_one_anchor_is_shrunk_by_the_prior():
    # The difference is 8 by the anchor, with the variance 2 (1 - r) s^2 = 1; by the prior 0, with 2 r s^2 = 1.
    effects = epoch_effects([anchor((0, 1.0), (1, 9.0))], 0.5)
    assert effects.of(1) == pytest.approx(8.0 * 1.0 / (1.0 + 1.0))


def test_only_differences_of_epochs_count_so_epoch_0_is_shrunk_like_any_other():
    scores = [((0, 1.0), (1, 9.0)), ((1, 2.0), (2, 3.0)), ((2, 7.0), (3, 5.0))]
    forward = epoch_effects([anchor(*pair) for pair in scores], 0.7)
    backward = epoch_effects([anchor(*[(3 - epoch, score) for epoch, score in pair]) for pair in scores], 0.7)
    assert forward.of(3) == pytest.approx(-backward.of(3))


def test_many_anchors_give_the_mean_difference():
    anchors = [anchor((0, float(policy)), (1, policy + 3.0)) for policy in range(500)]
    assert epoch_effects(anchors, 0.5).of(1) == pytest.approx(3.0, rel=0.01)


def test_epochs_are_connected_by_chains_of_anchors():
    anchors = [anchor((0, 0.0), (1, 2.0)), anchor((1, 5.0), (2, 4.0)), anchor((2, 9.0), (3, 13.0))] * 300
    effects = epoch_effects(anchors, 0.9)
    assert [effects.of(epoch) for epoch in (1, 2, 3)] == [pytest.approx(value, abs=0.05) for value in (2.0, 1.0, 5.0)]


def test_an_epoch_without_anchors_is_expected_to_be_as_hard_as_the_mean_of_all():
    effects = epoch_effects([anchor((0, 0.0), (1, 2.0)), anchor((4, 7.0))], 0.9)
    assert effects.of(4) == pytest.approx(effects.of(1) / 2)


def test_epochs_without_a_connection_to_epoch_0_are_compared_with_each_other():
    effects = epoch_effects([anchor((4, 0.0), (5, 2.0))] * 300, 0.9)
    assert (effects.of(4), effects.of(5)) == (pytest.approx(-1.0, abs=0.01), pytest.approx(1.0, abs=0.01))


def test_noisier_scores_count_less():
    precise, noisy = anchor((0, 0.0), (1, 1.0), error=0.1), anchor((0, 0.0), (1, 9.0), error=10.0)
    assert epoch_effects([precise, noisy], 0.9).of(1) < 2.0


def test_deterministic_scores_need_no_special_case():
    effects = epoch_effects([anchor((0, 5.0), (1, 5.0), error=0.0)], 0.9)
    assert effects.of(1) == pytest.approx(0.0)


def test_the_shrunk_effects_have_less_error_than_none_and_than_raw_differences():
    # 3 policies in each pair of neighboring epochs; scores have the variance 1, of which 0.6 is common to an epoch.
    random, share = Random(4), 0.6
    errors = {"model": [], "none": [], "raw": []}
    for _ in range(400):
        true = [random.gauss(0, math.sqrt(share)) for _ in range(8)]
        anchors = []
        for epoch in range(1, 8):
            for _ in range(3):
                policy = random.gauss(0, 5)
                noisy = [(e, policy + true[e] + random.gauss(0, math.sqrt(1 - share))) for e in (epoch - 1, epoch)]
                anchors.append(anchor(*noisy))
        effects = epoch_effects(anchors, share)
        raw = sum(one[1].score - one[0].score for one in anchors) / 3
        errors["model"].append((effects.of(7) - true[7] + true[0]) ** 2)
        errors["none"].append((true[7] - true[0]) ** 2)
        errors["raw"].append((raw - true[7] + true[0]) ** 2)
    assert fmean(errors["model"]) < 0.55 * fmean(errors["none"])
    assert fmean(errors["model"]) < fmean(errors["raw"])
