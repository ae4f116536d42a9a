"""Spans: sequences that are longer than a message. Pure functions of numpy arrays, `[M]`.

A span's messages may lie in different micro-batches. So its mean log-ratio is taken in a forward
pass without gradient, and given to the objective as a constant.
"""

from __future__ import annotations

import numpy as np

RATIO_SPANS = ('message', 'agent', 'episode')


def span_ids(ratio_span: str, episode: np.ndarray, agent: np.ndarray) -> np.ndarray:
  """Int `[M]`, dense ids of the span of each message.

  Args:
    ratio_span: 'message' (each its own), 'agent' (those of one agent in one episode) or
      'episode' (all of an episode).
    episode, agent: int `[M]`.
  """
  columns = {
    'message': [np.arange(len(episode))],
    'agent': [episode, agent],
    'episode': [episode],
  }[ratio_span]
  return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def span_statistics(
  log_ratio_sum: np.ndarray, tokens: np.ndarray, span: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """`span_log_ratio` and `span_share` of packed tokens, float32 `[M]` each.

  `span_log_ratio_m = sum of log-ratios in m's span / tokens in m's span`,
  `span_share_m = tokens of m / tokens in m's span`. Shares of a span sum to 1.

  Args:
    log_ratio_sum: float `[M]`, `sum_t (log pi - log pi_old)` of each message.
    tokens: `[M]`, loss tokens of each message; 0 for padding, whose share is 0.
    span: int `[M]`, `0 ..`, see `span_ids`.
  """
  total = np.bincount(span, weights=tokens)
  # An empty span is padding: any positive count will do.
  total = np.maximum(total, 1.0)[span]
  log_ratio = np.bincount(span, weights=log_ratio_sum)[span] / total
  return log_ratio.astype(np.float32), (tokens / total).astype(np.float32)
