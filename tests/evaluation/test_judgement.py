"""Compares AUC and silence at a threshold with loops over pairs and thresholds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gspo.evaluation import judgement

_SCORES = st.lists(st.integers(-4, 4), min_size=1, max_size=12).map(np.asarray)


@given(_SCORES, _SCORES)
def test_auc_is_the_share_of_ordered_pairs(low, high):
  pairs = [(a > b) + 0.5 * (a == b) for b in low for a in high]
  assert judgement.auc(low, high) == pytest.approx(np.mean(pairs))


@given(_SCORES, _SCORES, st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]))
def test_silence_at_is_the_best_of_all_thresholds(relevant, irrelevant, share):
  thresholds = [-np.inf, *relevant, *irrelevant]
  allowed = [t for t in thresholds if np.mean(relevant > t) <= share]
  best = max(np.mean(irrelevant > t) for t in allowed)
  assert judgement.silence_at(relevant, irrelevant, share) == pytest.approx(best)


def test_figures_of_perfect_and_of_no_judgement():
  relevant = np.array([True] * 100 + [False] * 50)
  perfect = judgement.figures(np.where(relevant, -5.0, -0.1), relevant)
  assert perfect == {
    'judgement/auc': 1.0,
    'judgement/silence_at_1%': 1.0,
    'judgement/silence_at_3%': 1.0,
    'judgement/silence_at_5%': 1.0,
  }
  blind = judgement.figures(np.zeros(150), relevant)
  assert blind['judgement/auc'] == 0.5
  assert blind['judgement/silence_at_5%'] == 0.0
  assert judgement.figures(np.zeros(3), np.array([True] * 3)) == {}
