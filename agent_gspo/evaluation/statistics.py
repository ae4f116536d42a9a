"""Computes confidence intervals for the figures of an evaluation."""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Sequence

import numpy as np

_CONFIDENCE = 0.95
_RESAMPLES = 10_000
_CHUNK = 1 << 20  # drawn indices per chunk, so that memory does not grow with `_RESAMPLES`


def wilson_interval(successes: float, n: int) -> tuple[float, float]:
  """Returns the 95 % score interval of a proportion, `(low, high)` (Wilson 1927).

  The interval contains every `p` with `(p_hat - p)^2 <= z^2 p (1 - p) / n`. Unlike the normal
  approximation it stays inside `[0, 1]` and has a width at `p_hat` of 0 and 1.

  Args:
    successes: Number of successes, in `[0, n]`; a sum of scores in `[0, 1]` is accepted and
      gives a conservative interval, as such scores vary less than a coin of the same mean.
    n: Number of trials, at least 1.

  Raises:
    ValueError: `n` or `successes` is out of range.
  """
  if not 0 <= successes <= n or n < 1:
    raise ValueError(f'{successes} of {n} trials: give a number of at least one')
  z = statistics.NormalDist().inv_cdf(0.5 + _CONFIDENCE / 2)
  p = successes / n
  scale = 1 + z * z / n
  centre = (p + z * z / (2 * n)) / scale
  half = z / scale * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
  # At the edges the end is exactly 0 or 1; rounding would leave 1e-17 there.
  low = 0.0 if successes == 0 else max(0.0, centre - half)
  high = 1.0 if successes == n else min(1.0, centre + half)
  return low, high


def bootstrap_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
  """Returns the 95 % percentile bootstrap interval of the mean, `(low, high)` (Efron 1979).

  The same values give the same interval on every machine.

  Args:
    values: Independent observations, `[n]`, `n >= 1`.
  """
  data = np.asarray(values, np.float64)
  rng, size = np.random.default_rng(0), max(1, _CHUNK // data.size)
  sizes = [min(size, _RESAMPLES - start) for start in range(0, _RESAMPLES, size)]
  draws = (data[rng.integers(data.size, size=(k, data.size))] for k in sizes)
  means = np.concatenate([draw.mean(axis=1) for draw in draws])
  tail = (1 - _CONFIDENCE) / 2
  low, high = np.quantile(means, [tail, 1 - tail])
  return float(low), float(high)


def expected_best(scores: Sequence[float] | np.ndarray, k: int) -> float:
  """Returns the mean best score of `k` samples, over all choices of `k` of the `n` given ones.

  For scores of 0 and 1, `c` of them 1, it is the unbiased pass@k, `1 - C(n - c, k) / C(n, k)`
  (arXiv 2107.03374). Of negative scores it is minus the mean worst one: pass^k, `C(c, k) / C(n, k)`
  (arXiv 2406.12045).

  Args:
    scores: Scores of one question's samples, `[n]`.
    k: Number of samples drawn without replacement, `1 <= k <= n`.
  """
  ordered = sorted(scores)
  choices = math.comb(len(ordered), k)
  # The i-th lowest score is the best of k in as many choices as there are k - 1 below it.
  return math.fsum(math.comb(i, k - 1) / choices * score for i, score in enumerate(ordered))


def error_correlation(errors: np.ndarray) -> tuple[float | None, float | None]:
  """Returns the correlation of voters' errors, and the independent voters that they amount to.

  The correlation `r` is the mean covariance of two voters over the mean variance. The mean of `K`
  voters varies as that of `K / (1 + (K - 1) r)` independent ones (Kish's design effect).

  Args:
    errors: Errors, in `[0, 1]`, of each voter on each question, `[n, K]`, `K >= 2`.

  Returns:
    `(r, voters)`: `r` from `-1 / (K - 1)` to 1, None if no voter's error varies; voters are None
    if their mean does not vary.
  """
  voters, covariance = errors.shape[1], np.cov(errors, rowvar=False, ddof=0)
  variance = float(np.trace(covariance)) / voters
  if variance <= 1e-18:  # equal fractions vary by rounding
    return None, None
  design = float(covariance.sum()) / variance / voters  # 1 + (K - 1) r
  return (design - 1) / (voters - 1), voters / design if design > 1e-9 else None


def effective_channels(answers: Sequence[str]) -> float:
  """Returns K* of one question: exp of the entropy of the eigenvalues of answers' similarity.

  arXiv 2602.03794 takes cosines of embedded texts. Here two answers are alike (1) or not (0), so
  eigenvalues are the shares of the distinct answers, and answers alone count, not their wording.

  Args:
    answers: Normalized answers, at least one.
  """
  share = np.asarray(list(collections.Counter(answers).values())) / len(answers)
  return math.exp(-float(share @ np.log(share)))


def questions_to_see(effect: float, gaps: np.ndarray) -> int:
  """Returns how many questions show a mean difference at 95 % confidence (normal approximation).

  The difference is then significant with a probability of 80 % (the power).

  Args:
    effect: Mean difference to be seen, above 0.
    gaps: Differences of the two systems on some questions, `[n]`, `n >= 2`.
  """
  normal = statistics.NormalDist()
  z = normal.inv_cdf(0.975) + normal.inv_cdf(0.8)
  return max(1, math.ceil((z * float(np.std(gaps, ddof=1)) / effect) ** 2))  # 1 if all are equal


def paired_bootstrap(
  a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray
) -> tuple[float, float, float]:
  """Returns the difference of the means of two systems on the same questions, with its interval.

  Whole pairs are resampled, so the difficulty of a question that both systems share cancels. If
  the interval excludes 0, the systems differ at a confidence of 95 %.

  Args:
    a: One value per question, `[n]`.
    b: The other system's values on the same questions, in the same order, `[n]`.

  Returns:
    `(mean(a) - mean(b), low, high)`.
  """
  gap = np.asarray(a, np.float64) - np.asarray(b, np.float64)
  return float(gap.mean()), *bootstrap_interval(gap)
