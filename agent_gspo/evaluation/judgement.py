"""Measures how well the probability of silence separates irrelevant from relevant notes.

An agent decides with its first token: a stop token is silence. A price moves the threshold on the
probability of silence; these figures bound the silence rates at any threshold.
"""

from __future__ import annotations

import numpy as np

SHARES = (0.01, 0.03, 0.05)
"""Shares of relevant notes not sent at which `figures` reports silence on irrelevant ones."""


def auc(low: np.ndarray, high: np.ndarray) -> float:
  """Returns the area under the ROC curve: `P(h > l) + P(h = l) / 2`.

  Args:
    low: Values of the class that should be low, float `[L]`.
    high: Values of the other class, float `[H]`.
  """
  ranked = np.sort(low)
  below = np.searchsorted(ranked, high, side='left')
  up_to = np.searchsorted(ranked, high, side='right')
  return float(np.mean(below + up_to) / (2 * len(low)))


def silence_at(relevant: np.ndarray, irrelevant: np.ndarray, share: float) -> float:
  """Returns the largest silence rate on irrelevant notes that a threshold can reach.

  Args:
    relevant: Score of silence for authors of relevant notes, float `[R]`.
    irrelevant: Score of silence for authors of irrelevant notes, float `[I]`.
    share: Largest share of relevant notes on which authors may be silent.
  """
  allowed = int(share * len(relevant) + 1e-9)  # authors of relevant notes above the threshold
  threshold = np.sort(relevant)[::-1][allowed] if allowed < len(relevant) else -np.inf
  return float(np.mean(irrelevant > threshold))


def figures(log_silence: np.ndarray, relevant: np.ndarray) -> dict[str, float]:
  """Returns AUC and silence rates for `eval.jsonl`; empty if either kind of note is missing.

  Args:
    log_silence: Log-probability that an author is silent, float `[N]`.
    relevant: True for authors with a relevant note, bool `[N]`.
  """
  yes, no = log_silence[relevant], log_silence[~relevant]
  if not (len(yes) and len(no)):
    return {}
  return {
    'judgement/auc': auc(yes, no),
    **{f'judgement/silence_at_{share:.0%}': silence_at(yes, no, share) for share in SHARES},
  }
