"""Computes the metrics of one optimizer step for `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping

# Half-open ranges of message length (stop token included) with a clip fraction of their own.
LENGTH_RANGES = ((1, 8), (8, 16), (16, 32), (32, 10**9))


def of_sums(sums: Mapping[str, float], grad_norm: float) -> dict[str, float]:
  """Returns means from the sums of `PolicyLoss` over the micro-batches of a mini-batch."""
  count, tokens = max(sums['messages'], 1.0), max(sums['tokens'], 1.0)
  metrics = {
    'policy/objective': sums['objective'] / max(sums['count'], 1.0),
    'policy/ratio_mean': sums['ratio'] / count,
    'policy/ratio_error_max': sums['ratio_error_max'],
    'policy/clip_fraction': sums['clipped'] / count,
    'policy/entropy': sums['entropy'] / tokens,
    'policy/logprob_gap_mean': sums['gap'] / tokens,
    'policy/logprob_gap_max': sums['gap_max'],
    'policy/sampler_gap_mean': sums['sampler_gap'] / tokens,
    'policy/sampler_gap_max': sums['sampler_gap_max'],
    'policy/grad_norm': grad_norm,
    'policy/kl': sums['kl'] / count,
  }
  if 'tis_weight' in sums:
    metrics['policy/tis_weight_mean'] = sums['tis_weight'] / count
    metrics['policy/tis_truncated'] = sums['tis_truncated'] / count
  for low, high in LENGTH_RANGES:
    if sums[f'count_{low}']:
      name = f'{low}' if high == low + 1 else f'{low}_up' if high > 1e6 else f'{low}-{high - 1}'
      share = sums[f'clipped_{low}'] / sums[f'count_{low}']
      metrics[f'policy/clip_fraction_length_{name}'] = share
  return metrics
