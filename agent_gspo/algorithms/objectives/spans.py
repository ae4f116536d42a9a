"""Computes statistics of spans, sequences of several messages, from NumPy arrays `[M]`.

A span's messages may lie in different micro-batches. Its mean log-ratio is therefore computed in a
forward pass without gradient and passed to the objective as a constant.
"""

from __future__ import annotations

import numpy as np


def span_ids(ratio_span: str, episode: np.ndarray, agent: np.ndarray) -> np.ndarray:
  """Returns dense ids of the span of each message, int `[M]`.

  Args:
    ratio_span: 'message' (each its own), 'agent' (messages of one agent in one episode) or
      'episode' (all messages of an episode).
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
  """Computes `span_log_ratio` and `span_share` of packed tokens, float32 `[M]` each.

  `span_log_ratio_m = sum of log-ratios in m's span / tokens in m's span`,
  `span_share_m = tokens of m / tokens in m's span`. Shares of a span sum to 1.

  Args:
    log_ratio_sum: `sum_t (log pi - log pi_old)` of each message, float `[M]`.
    tokens: Loss tokens of each message, `[M]`; 0 for padding, whose share is 0.
    span: Span ids, int `[M]`, see `span_ids`.
  """
  total = np.bincount(span, weights=tokens)
  # Empty spans are padding: any positive count is valid.
  total = np.maximum(total, 1.0)[span]
  log_ratio = np.bincount(span, weights=log_ratio_sum)[span] / total
  return log_ratio.astype(np.float32), (tokens / total).astype(np.float32)
