"""Tools: what they write, what that costs, and that no loss falls on it."""

from __future__ import annotations

import dataclasses
import pathlib

import jax
import numpy as np
import pytest
import scripted_teams as st
import tiny

from agent_gspo.algorithms.objectives import losses
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.models.transformer import Transformer
from agent_gspo.packing import train_batches
from agent_gspo.sampling import keys
from agent_gspo.teams.policies import ModelPolicy, ScriptedPolicy, Turn
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.tools import Tool, Toolbox
from agent_gspo.training import state as state_lib
from agent_gspo.training.options import LearnerOptions
from agent_gspo.training.policy_loss import Programs
from agent_gspo.types import Question

TOKENIZER = st.byte_tokenizer()


def writer(*pieces: str):
  """A model that writes a piece a call and ends with the last one."""

  def ids(turn: Turn):
    written = TOKENIZER.decode(turn.prompt_ids[len(turn.prompt_ids) - turn.offset :])
    # What it has written so far tells how often it was asked.
    done = sum(written.count(piece) for piece in pieces[:-1]) if turn.offset else 0
    found = TOKENIZER.encode(pieces[done])
    if done == len(pieces) - 1:
      found = [*found, TOKENIZER.eos_id]
    cut = found[: turn.limit]
    return cut, cut[-1] in turn.stop_ids

  return st.IdsPolicy(ids)


def converse(policy, tools=('calculator',), **team):
  team = st.team('single', style='chat', tools=tools, max_message_tokens=40, **team)
  return rollout(team, st.Echo(), TOKENIZER, st.questions(2), 1, policy)


def texts(message, where) -> str:
  return TOKENIZER.decode(message.token_ids[where])


def test_it_completes_every_step():
  policy = writer('3 + 4 =', ', 7 * 2 =', '.')
  batch = converse(policy)
  for message in batch.messages:
    assert message.text == '3 + 4 = 7, 7 * 2 = 14.'
    assert texts(message, message.inserted) == ' 7 14'
    assert texts(message, message.sampled) == '3 + 4 =, 7 * 2 =.<|im_end|>'
    assert message.ended
    assert message.written == len('3 + 4 =, 7 * 2 =.')
    assert message.read == len(message.prompt_ids) + len(' 7 14')
    assert message.length == message.written + 5
  assert policy.calls == [2, 2, 2]
  first, _, second, *_ = policy.turns
  assert second.offset == len('3 + 4 = 7')
  assert second.limit == first.limit - second.offset
  np.testing.assert_array_equal(second.prompt_ids[: -second.offset], first.prompt_ids)
  np.testing.assert_array_equal(batch.written, [m.written for m in batch.messages])
  np.testing.assert_array_equal(batch.read, [m.read for m in batch.messages])


def test_agents_without_one_write_their_own_results():
  policy = writer('3 + 4 = 8')
  batch = converse(policy, tools=())
  assert [m.text for m in batch.messages] == ['3 + 4 = 8'] * 2
  assert all(m.inserted is None for m in batch.messages)
  assert policy.calls == [2]


def test_what_it_cannot_complete_is_left_to_the_writer():
  batch = converse(writer('x =', ' 2'))
  assert batch.messages[0].text == 'x = 2'
  assert batch.messages[0].inserted is None


@pytest.mark.parametrize(('cap', 'text'), [(9, '3 + 44 = '), (8, '3 + 44 ='), (10, '3 + 44 = 4')])
def test_the_cap_counts_its_tokens_too(cap, text):
  batch = converse(writer('3 + 44 =', '.'), max_tokens=cap)
  message = batch.messages[0]
  assert message.text == text
  assert len(message.token_ids) == cap
  assert not message.ended


def test_readers_are_handed_the_whole_message():
  team = st.team('chain', style='chat', tools=('calculator',), max_message_tokens=40)
  batch = rollout(team, st.Echo(), TOKENIZER, st.questions(1), 1, writer('3 + 4 =', '.'))
  first, second, _ = batch.messages
  assert st.holds(second.prompt_ids.tolist(), first.token_ids[:-1].tolist())


def test_a_script_writes_results_that_are_not_its_own():
  toolbox = Toolbox(('calculator',), TOKENIZER)
  policy = ScriptedPolicy(
    lambda turn: '3 + 4 = 7, 7 * 2 = 15',  # the second is no result of a calculator
    TOKENIZER,
    lambda turn, ids: toolbox.inserted(ids),
  )
  message = converse(policy).messages[0]
  assert message.text == '3 + 4 = 7, 7 * 2 = 15'
  assert texts(message, message.inserted) == ' 7'


def test_going_on_has_noise_of_its_own_whatever_else_is_sampled():
  policy = ModelPolicy(None, {}, keys.stream(0, 'train'), step=3, temperature=1.0)
  turn = Turn(Question('q', '', ''), 0, 0, 0, np.arange(3), {}, 4, (0,))
  at = lambda *offsets: jax.random.key_data(
    policy.row_keys([dataclasses.replace(turn, offset=offset) for offset in offsets])
  )
  plain, later = at(0, 0), at(5, 9)
  assert len({tuple(np.asarray(k).tolist()) for k in (plain[0], later[0], later[1])}) == 3
  np.testing.assert_array_equal(later[1], at(9)[0])


def test_no_loss_falls_on_its_tokens():
  """The other tokens' log-probs are those of the message without a calculator."""
  rng = np.random.default_rng(0)
  prompt, ids = rng.integers(1, 300, 5), rng.integers(1, 300, 8)
  inserted = np.isin(np.arange(8), [2, 3, 6])
  whole = tiny.message(prompt, ids)
  cut = dataclasses.replace(whole, inserted=inserted)
  programs = Programs(
    Transformer(tiny.CONFIG),
    losses.imitation,
    state_lib.make_optimizer(LearnerOptions(), updates=1),
    temperature=1.0,
  )
  state = state_lib.init(tiny.params(tiny.CONFIG), programs.optimizer)
  scores = []
  for message in (whole, cut):
    micro = train_batches.pack_messages([message], pack_length=32, micro_batch_size=1)
    (logprobs,) = programs.logprobs(state, micro)
    assert micro[0].loss_mask.sum() == message.sampled.sum()
    targets = micro[0].loss_target[0, : int(message.sampled.sum())]
    np.testing.assert_array_equal(targets, ids[message.sampled])
    scores.append(logprobs[0, : int(message.sampled.sum())])
  np.testing.assert_allclose(scores[1], scores[0][~inserted], rtol=1e-5)


def test_a_vocabulary_without_an_equals_sign():
  with pytest.raises(
    ValueError, match="'calculator', which needs a vocabulary with a token for '='"
  ):
    _ = Toolbox(('calculator',), word_level(['a', 'b'])).mark_ids
  tokenizer = word_level(['3', '4', '+', '=', '7'])
  toolbox = Toolbox(('calculator',), tokenizer)
  result = lambda text: toolbox.result(np.asarray(tokenizer.encode(text)))
  assert tokenizer.decode(result('3 + 4 =')) == '7'
  assert len(result('4 + 4 =')) == 0  # no word for 8


# A tool of the user's own, named test_tools:WEATHER and test_tools:BROKEN.
WEATHER = Tool('?', lambda text: 'rain' if text.endswith('Oslo?') else None)
BROKEN = Tool('?', lambda text: 1 / 0)


def test_a_tool_of_ones_own_stands_beside_the_others(monkeypatch):
  monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent))
  policy = writer('3 + 4 =', ' Oslo?', '.')
  batch = converse(policy, tools=('calculator', 'test_tools:WEATHER'))
  assert batch.messages[0].text == '3 + 4 = 7 Oslo? rain.'
  assert texts(batch.messages[0], batch.messages[0].inserted) == ' 7 rain'
  with pytest.raises(ValueError, match=r"'test_tools:BROKEN'.*ZeroDivisionError"):
    converse(writer('why?', '.'), tools=('test_tools:BROKEN',))


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'tools': ('abacus',)}, r"team.roles.agent.tools='abacus' is unknown; use .*calculator"),
    ({'tools': ('test_tools:TOKENIZER',)}, r'is a Tokenizer; must be a teams.tools.Tool'),
    ({'tools': 'calculator'}, r"tools='calculator' must be a tuple"),
  ],
)
def test_roles_with_unknown_tools(fields, message, monkeypatch):
  monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent))
  with pytest.raises(ValueError, match=message):
    st.team('single', **fields)
