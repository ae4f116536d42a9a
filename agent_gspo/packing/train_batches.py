"""Packs messages into micro-batches of tree rows of one static shape, with per-message values."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from agent_gspo.packing import prefix_tree
from agent_gspo.types import Message, TrainBatch


def pack_messages(
  messages: Sequence[Message],
  index: Collection[int] | None = None,
  *,
  pack_length: int,
  micro_batch_size: int,
  adapters: Sequence[int] | None = None,
  trained: Collection[int] | None = None,
) -> list[TrainBatch]:
  """Packs messages into micro-batches of `micro_batch_size` rows of `pack_length` columns.

  Shared contexts are stored once per row: the prompt of a group, the few-shot examples of a role,
  the earlier turns of a conversation. Agents with different adapters share none, since hidden
  states of equal tokens differ between adapters.

  Args:
    messages: Messages; those without a sampled token are skipped. Tokens inserted by tools are
      context, not loss tokens.
    index: Indices of the messages to pack, by default all.
    pack_length: Columns `T`; also the loss tokens `L` and message slots `S` of a row.
    micro_batch_size: Rows `R` of a micro-batch; the last one is padded with empty rows.
    adapters: Adapter of each agent, -1 for none; by default the model's only one.
    trained: Agents whose messages are packed, by default all. Messages of a frozen agent would
      cost time without a gradient.

  Returns:
    Micro-batches with the sampler's log-probs as `old_logprobs` and with advantages 0, to be set
    by `with_values`.

  Raises:
    ValueError: A prompt and its message are longer than a row.
  """
  packed = lambda agent: trained is None or agent in trained
  chosen = range(len(messages)) if index is None else index
  sampled = [m for m in chosen if len(messages[m].token_ids) and packed(messages[m].agent)]
  if not sampled:
    return []
  # The last token is predicted, never an input.
  inputs = [messages[m].path[:-1] for m in sampled]
  longest = max(map(len, inputs))
  if longest > pack_length:
    raise ValueError(
      f'learner.pack_length={pack_length} is too short for a prompt and message of {longest + 1} '
      'tokens; set it to at least that.'
    )
  tree = prefix_tree.pack(
    inputs,
    pack_length,
    loads=[int(messages[m].sampled.sum()) for m in sampled],
    max_load=pack_length,
    keys=[adapters[messages[m].agent] for m in sampled] if adapters is not None else None,
  )
  total = -(-len(tree.tokens) // micro_batch_size) * micro_batch_size
  shape = (total, pack_length)  # [rows, T], and the same for L and S
  batch = {
    'tokens': _pad_rows(tree.tokens, total),
    'positions': _pad_rows(tree.positions, total),
    'subtree_end': _pad_rows(tree.subtree_end, total),
    'loss_source': np.zeros(shape, np.int32),
    'loss_target': np.zeros(shape, np.int32),
    'loss_message': np.zeros(shape, np.int32),
    'loss_mask': np.zeros(shape, np.float32),
    'sampler_logprobs': np.zeros(shape, np.float32),
    'old_logprobs': np.zeros(shape, np.float32),
    'message': np.zeros(shape, np.int32),
    'advantages': np.zeros(shape, np.float32),
    'message_mask': np.zeros(shape, np.float32),
  }
  some = next((x for m in sampled if (x := messages[m].experts) is not None), None)
  if some is not None:
    batch['sampler_experts'] = np.full((*shape, *some.shape[1:]), -1, some.dtype)
  loss_used = np.zeros(total, int)
  slots_used = np.zeros(total, int)
  for m, row, columns in zip(sampled, tree.row, tree.columns, strict=True):
    message = messages[m]
    trained_on = message.sampled
    count = int(trained_on.sum())
    span = slice(loss_used[row], loss_used[row] + count)
    slot = slots_used[row]
    # The column before each sampled token predicts it, `[count]`.
    batch['loss_source'][row, span] = columns[-len(trained_on) :][trained_on]
    batch['loss_target'][row, span] = message.token_ids[trained_on]
    batch['loss_message'][row, span] = slot
    batch['loss_mask'][row, span] = 1.0
    logprobs = message.logprobs[trained_on]
    batch['sampler_logprobs'][row, span] = batch['old_logprobs'][row, span] = logprobs
    batch['message'][row, slot] = m
    batch['message_mask'][row, slot] = 1.0
    if message.experts is not None:
      # A column keeps the first experts, but for a loss token has those it was sampled with.
      known = batch['sampler_experts'][row]  # [T, num_layers, k]
      own = np.pad(trained_on, (len(columns) - len(trained_on), 0))
      own = (own | (known[columns, 0, 0] < 0))[: len(message.experts)]
      known[columns[: len(own)][own]] = message.experts[own]
    loss_used[row] += count
    slots_used[row] += 1
  if adapters is not None:
    batch['adapters'] = _pad_rows(tree.keys, total)
  return [
    TrainBatch(
      **{'adapters': None, **{k: array[i : i + micro_batch_size] for k, array in batch.items()}}
    )
    for i in range(0, total, micro_batch_size)
  ]


def _pad_rows(array: np.ndarray, rows: int) -> np.ndarray:
  """Repeats the last row up to `rows`; padding rows get no loss tokens."""
  return np.concatenate([array, np.repeat(array[-1:], rows - len(array), axis=0)])


def with_values(micro_batches: Sequence[TrainBatch], **values: np.ndarray) -> list[TrainBatch]:
  """Returns micro-batches with per-message values `[M]` set, by field of `TrainBatch`."""
  return [
    dataclasses.replace(b, **{field: by_slot(value, b) for field, value in values.items()})
    for b in micro_batches
  ]


def with_factors(micro_batches: Sequence[TrainBatch], factors: np.ndarray) -> list[TrainBatch]:
  """Returns micro-batches whose advantages are multiplied by `factors`, float32 `[M]`."""
  return [
    dataclasses.replace(b, advantages=b.advantages * by_slot(factors, b)) for b in micro_batches
  ]


def with_old_logprobs(
  micro_batches: Sequence[TrainBatch],
  scored: Sequence[tuple[np.ndarray, np.ndarray | None]],
) -> list[TrainBatch]:
  """Returns micro-batches with the log-probs and experts of `Programs.scored` as the old ones."""
  return [
    dataclasses.replace(b, old_logprobs=logprobs, old_experts=experts)
    for b, (logprobs, experts) in zip(micro_batches, scored, strict=True)
  ]


def with_first_token_weights(
  micro_batches: Sequence[TrainBatch], weights: np.ndarray
) -> list[TrainBatch]:
  """Returns micro-batches with a loss weight for the first token of each message.

  Args:
    micro_batches: `M` messages packed together.
    weights: Weight of each message's first sampled token, float `[M]`; all others weigh 1.
  """
  found = []
  for batch in micro_batches:
    slot = np.asarray(batch.loss_message)  # [R, L]
    # A message's loss tokens are contiguous, in the order of slots.
    first = (np.diff(slot, axis=1, prepend=-1) != 0) & (batch.loss_mask > 0)
    token_weights = np.where(first, np.asarray(weights)[_message_of(batch)], 1.0).astype(np.float32)
    found.append(dataclasses.replace(batch, token_weights=token_weights))
  return found


def messages_in(micro_batches: Sequence[TrainBatch]) -> np.ndarray:
  """Returns the indices of the packed messages in rising order, int `[m]`."""
  return np.unique(np.concatenate([b.message[b.message_mask > 0] for b in micro_batches]))


def by_slot(values: np.ndarray, batch: TrainBatch) -> np.ndarray:
  """Scatters per-message values `[M]` to slots, float32 `[R, S]`; 0 in empty slots."""
  return np.where(batch.message_mask > 0, np.asarray(values)[batch.message], 0).astype(np.float32)


def message_sums(
  micro_batches: Sequence[TrainBatch], values: Sequence[np.ndarray], count: int
) -> np.ndarray:
  """Sums loss-token values, float `[R, L]` per micro-batch, by message: float64 `[count]`."""
  sums = np.zeros(count)
  for batch, value in zip(micro_batches, values, strict=True):
    np.add.at(sums, _message_of(batch), value * batch.loss_mask)
  return sums


def message_tokens(
  micro_batches: Sequence[TrainBatch], values: Sequence[np.ndarray], count: int
) -> list[np.ndarray]:
  """Gathers loss-token values, float `[R, L]` per micro-batch, by message: `count` arrays `[n]`."""
  ids, found = [np.zeros(0, int)], [np.zeros(0)]
  for batch, value in zip(micro_batches, values, strict=True):
    chosen = np.asarray(batch.loss_mask) > 0  # [R, L]
    ids.append(_message_of(batch)[chosen])
    found.append(np.asarray(value)[chosen])
  message = np.concatenate(ids)
  in_order = np.concatenate(found)[np.argsort(message, kind='stable')]
  return np.split(in_order, np.cumsum(np.bincount(message, minlength=count))[:-1])


def _message_of(batch: TrainBatch) -> np.ndarray:
  """Returns the message of each loss token, int `[R, L]`."""
  return np.take_along_axis(np.asarray(batch.message), np.asarray(batch.loss_message), axis=1)


def positions(messages: Sequence[Message], micro_batches: Sequence[TrainBatch]) -> dict[str, float]:
  """Counts positions computed, and positions with one row per message: the saving of packing."""
  computed = sum(b.tokens.size for b in micro_batches)
  return {
    'packing/positions': float(computed),
    'packing/unshared_positions': float(sum(max(len(m.path) - 1, 0) for m in messages)),
  }
