"""Softmax attention under a mask that is a description, on any kind of device.

All implementations take and give the same:

    queries, scaled   [B, K, g, T, d]   K heads of keys, each with g of queries (grouped-query)
    keys, values      [B, K, S, d]
    mask              `masks.TreeMask` (S = T) or `masks.CacheMask`
    out               [B, K, g, T, d], in the dtype of the values

Scores, their maximum and their sum are float32, operands of products as given.
"""

IMPLEMENTATIONS = ('auto', 'reference', 'blockwise', 'tpu', 'gpu')
"""Names for `attend.attend`, and values of `model.attention`."""

KEPT = 'attention'
"""Name of what the gradient of 'blockwise' and 'tpu' needs of the result, for `jax.checkpoint`."""
