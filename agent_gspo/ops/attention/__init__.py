"""Implements softmax attention under compact masks, for any kind of device.

All implementations share one interface:

    queries, scaled   [B, K, g, T, d]   K key-value heads, each with g query heads (GQA)
    keys, values      [B, K, S, d]
    mask              `masks.TreeMask` (S = T) or `masks.CacheMask`
    cap               scores are `cap * tanh(scores / cap)` before the mask; None for no cap
    out               [B, K, g, T, d], in the dtype of the values

Scores, their maximum and their sum are float32; matmul operands keep their dtype.
"""

IMPLEMENTATIONS = ('auto', 'reference', 'blockwise', 'tpu', 'gpu')
"""Names for `attend.attend`, and values of `model.attention`."""

KEPT = 'attention'
"""`jax.checkpoint` name of the residuals of 'blockwise' and 'tpu'."""
