"""Tests tools: inserted results and their cost, and that they carry no loss."""

from __future__ import annotations

import dataclasses
import functools
import pathlib

import hypothesis
import jax
import numpy as np
import pretrained
import pytest
import scripted_teams as st
import tiny
from hypothesis import strategies

from agent_gspo import sandbox, types
from agent_gspo.algorithms.objectives import losses
from agent_gspo.models.presets import PRESETS
from agent_gspo.models.text.tokenizer import word_level
from agent_gspo.models.transformer import Transformer, init_params
from agent_gspo.packing import train_batches
from agent_gspo.rewards import bounds, communication
from agent_gspo.rewards.options import RewardOptions
from agent_gspo.sampling import keys
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.teams import counts, tools
from agent_gspo.teams.policies import ModelPolicy, Reply, ScriptedPolicy, Turn
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.tools import Tool, Toolbox, speak
from agent_gspo.training import state as state_lib
from agent_gspo.training.options import LearnerOptions
from agent_gspo.training.policy_loss import Programs
from agent_gspo.types import Question

TOKENIZER = st.byte_tokenizer()
QUESTION = Question(
  'q',
  'Where does Ann live?',
  'Oslo',
  documents=('Bob lives in Rome.', 'Ann lives in Oslo.', 'Ann has a dog.'),
)


def writer(*pieces: str):
  """Returns a model that writes one piece per call and stops after the last."""

  def ids(turn: Turn):
    written = TOKENIZER.decode(turn.prompt_ids[len(turn.prompt_ids) - turn.offset :])
    # The text so far gives the number of earlier calls.
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


def test_the_calculator_completes_every_step():
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


def test_incomplete_expressions_are_left_to_the_agent():
  batch = converse(writer('x =', ' 2'))
  assert batch.messages[0].text == 'x = 2'
  assert batch.messages[0].inserted is None


@pytest.mark.parametrize(('cap', 'text'), [(9, '3 + 44 = '), (8, '3 + 44 ='), (10, '3 + 44 = 4')])
def test_the_cap_counts_inserted_tokens(cap, text):
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
    lambda turn, ids: toolbox.inserted(ids, turn.question),
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


def test_inserted_tokens_carry_no_loss():
  """Other tokens keep the log-probs of the message without a calculator."""
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


def test_no_call_is_written_after_the_last_that_is_allowed():
  policy = writer('3 + 4 =', ', 7 * 2 =', ' 15.')
  message = converse(policy, tool_calls=1).messages[0]
  # The second mark is an ordinary token and stops nothing.
  assert message.text == '3 + 4 = 7, 7 * 2 ='
  assert message.tool_calls == 1
  assert not message.ended
  unlimited, limited = (turn.stop_ids for turn in policy.turns[1:3])
  assert set(unlimited) > set(limited)


def test_a_result_is_cut_at_its_own_cap():
  message = converse(writer('300 + 44 =', '.'), tool_tokens=3).messages[0]
  assert texts(message, message.inserted) == ' 34'


@pytest.mark.parametrize('cost', ['tokens', 'critical_path', 'money'])
def test_an_inserted_token_is_paid_once_by_its_caller(cost):
  team = st.team('star', style='chat', tools=('calculator',), max_message_tokens=40)
  batch = rollout(
    team, st.Echo(), TOKENIZER, st.questions(2), 2, writer('3 + 4 =', ', 7 * 2 =', '.')
  )
  np.testing.assert_array_equal(batch.tool_calls, 2)
  np.testing.assert_array_equal(batch.tool_tokens, len(' 7 14'))
  free = RewardOptions(cost=cost, p_write=0.5, p_read=0.25)
  priced = dataclasses.replace(free, p_tool=3.0)
  added = communication.message_costs(priced, batch) - communication.message_costs(free, batch)
  np.testing.assert_allclose(added, 15.0 / (1e6 if cost == 'money' else 1), rtol=1e-4)
  if cost != 'money':
    costs = communication.episode_costs(priced, batch)
    assert costs.max() <= bounds.max_episode_cost(priced, team)
    lone = dataclasses.replace(priced, p_write=0.0, p_read=0.0)
    assert bounds.max_episode_cost(lone, team) == 3 * 40 * 3
  assert counts.tools(batch) == {'tools/calls_per_question': 6, 'tools/tokens_per_question': 15}


def test_sampler_and_trainer_agree_about_what_follows_a_result(monkeypatch):
  monkeypatch.setitem(
    tools.TOOLS, 'calculator', Tool('=', lambda message, question: question.documents[1])
  )
  words = ['Q', 'note', ':', 'from', 'say', 'agent', '=', 'Ann', 'lives', 'in', 'Oslo.']
  tokenizer = word_level(words)
  model = PRESETS['micro_moe'].replace(vocab_size=tokenizer.vocab_size, num_layers=1)
  params = jax.jit(init_params, static_argnums=0)(model, jax.random.key(3))
  sampler, stream = Sampler(model, max_new_tokens=16), keys.stream(0, 'train')
  policy = ModelPolicy(sampler, params, stream, step=0, temperature=1.0, experts=True)
  team = st.team('single', tools=('calculator',), max_message_tokens=16, opening='Q ')
  messages = rollout(team, st.Echo(), tokenizer, [QUESTION], 12, policy).messages
  assert sum(message.tool_calls for message in messages) > 4
  learner = LearnerOptions()
  programs = Programs(
    Transformer(model),
    losses.imitation,
    state_lib.make_optimizer(learner, updates=1),
    temperature=1.0,
  )
  state = state_lib.init(params, programs.optimizer)
  micro = train_batches.pack_messages(messages, pack_length=512, micro_batch_size=1)
  ((found, experts),) = programs.scored(state, micro)
  mask = micro[0].loss_mask > 0
  assert mask.sum() == sum(message.sampled.sum() for message in messages)
  np.testing.assert_allclose(found[mask], micro[0].sampler_logprobs[mask], atol=2e-5)
  known = (micro[0].sampler_experts >= 0).all(axis=(2, 3))  # [R, T]
  assert known[0, micro[0].loss_source[mask]].all()
  np.testing.assert_array_equal(*(np.sort(x[known]) for x in (experts, micro[0].sampler_experts)))


def test_a_draft_keeps_the_experts_that_it_was_sampled_with():
  """Samples what follows a result after the draft has been read again."""
  write = writer('3 + 4 =', ', 7 * 2 =', '.')

  def policy(turns):
    call = len(write.calls)
    count = lambda turn, reply: len(turn.prompt_ids) + len(reply.token_ids) - 1
    return [
      reply._replace(experts=np.full((count(turn, reply), 1, 2), call, np.int8))
      for turn, reply in zip(turns, write(turns), strict=True)
    ]

  for message in converse(policy).messages:
    experts = message.experts[:, 0, 0]
    assert message.experts.shape == (len(message.path) - 1, 1, 2)
    sampled = experts[len(message.prompt_ids) - 1 :][message.sampled]  # where they are predicted
    calls = [0] * len('3 + 4 =') + [1] * len(', 7 * 2 =') + [2] * len('.E')
    np.testing.assert_array_equal(sampled, calls)


_WORDS = ['note', 'Ann', 'lives', 'in', '3', '4', '81', '**', 'x', *tools.TOOLS['python'].words]
_BOTH = word_level([*dict.fromkeys([*_WORDS, *tools.TOOLS['retriever'].words])])


@pytest.mark.parametrize(
  ('message', 'result'),
  [
    ('``` python print ( 3 ** 4 ) ```', '81'),
    ('3 ``` python print ( 3 ) ``` 3 ``` python print ( 4 ) ```', '4'),
    ('``` python x ```', 'error: NameError:'),  # up to the first unknown word
    ('``` python ( ```', 'error: SyntaxError:'),
    ('``` python 3 ```', 'error: nothing printed'),
    ('``` python print ( 3 + 3 ) ```', 'error: unreadable'),  # no word for 6
    ('``` python print ( 3 ) ``` Ann ```', ''),  # no code between
    ('```', ''),
    ('python print ( 3 ) ```', ''),
    ('search lives Ann ?', 'Ann lives in'),  # and no word for Oslo
    ('search x Ann ?', 'Ann lives in'),
    ('search x ?', 'error: nothing found'),
    ('search ?', 'error: nothing found'),
    ('Ann lives ?', ''),
    ('search Ann ? lives ?', ''),
  ],
)
def test_calls_and_results_by_hand(message, result):
  toolbox = Toolbox(('python', 'retriever'), _BOTH)
  toolbox.check()
  ids = toolbox.result(np.asarray(_BOTH.encode(message)), QUESTION)
  assert _BOTH.backend.decode(ids.tolist(), skip_special_tokens=True) == result


def test_a_program_that_times_out_inserts_that(monkeypatch):
  monkeypatch.setattr(tools, '_PYTHON_LIMITS', sandbox.Limits(cpu_seconds=1, idle_seconds=0.3))
  python = tools.TOOLS['python'].result
  for code in ('while True: pass', 'import time; time.sleep(9)'):
    assert python(f'```python {code}```', QUESTION) == 'error: timeout'


def test_documents_rank_as_their_formula_says():
  """Okapi BM25 by hand for `ann dog`: idf of ann ln(1 + 1.5 / 2.5), of dog ln(1 + 2.5 / 1.5)."""
  documents = QUESTION.documents
  mean = np.mean([4, 4, 4])
  weight = lambda length: 2.5 / (1 + 1.5 * (0.25 + 0.75 * length / mean))
  ann, dog = np.log(1.6) * weight(4), np.log(1 + 2.5 / 1.5) * weight(4)
  np.testing.assert_allclose(tools._bm25('Ann dog?', documents), [0, ann, ann + dog])
  alone = dataclasses.replace(QUESTION, documents=(), notes=('', 'Ann lives here.'))
  assert tools.TOOLS['retriever'].result('search ann?', alone) == 'Ann lives here.'


@functools.cache
def real_tokenizer():
  return pretrained.smollm().tokenizer


def test_a_real_vocabulary_calls_every_tool():
  tokenizer = real_tokenizer()
  toolbox = Toolbox(('calculator', 'python', 'retriever'), tokenizer, tokens=12)
  for message, result in (
    ('So 3 + 4 =', ' 7'),
    ('I run ```python\nfor i in range(3):\n  print(i, "<|im_end|>")\n```', ' 0 <|im_end|> 1 <'),
    ('search home of Ann?', ' Ann lives in Oslo.'),
  ):
    ids = toolbox.result(np.asarray(tokenizer.encode(message)), QUESTION)
    assert tokenizer.decode(ids.tolist()) == result
    assert tokenizer.eos_id not in ids
    assert int(tokenizer.encode(message)[-1]) in toolbox.mark_ids()


_PIECES = ['```', 'python', '?', 'search', '=', '3 +', 'print(', ')', '"', "'", '\n  ', '\\', '\0']
_PIECES += ['{', '# ', 'import os;', 'x', '\ufffd', '\u2028', '1/0', 'Ann ', 'exit(1)', 'raise ']


@hypothesis.settings(max_examples=300, deadline=None, derandomize=True)
@hypothesis.given(
  strategies.lists(strategies.sampled_from(_PIECES) | strategies.text(max_size=3), max_size=9),
  strategies.sampled_from([('```python ', '```'), ('search ', '?'), ('', '='), ('', '```')]),
  strategies.integers(0, 3),
)
def test_malformed_calls_end_in_no_traceback(pieces, ends, calls):
  """Malformed calls insert a short text or nothing, without a loss."""
  tokenizer, (before, mark) = real_tokenizer(), ends
  call = tokenizer.encode(before + ''.join(pieces) + mark, special=False)[-60:]
  end = [tokenizer.eos_id]
  policy = st.IdsPolicy(lambda turn: (end if turn.offset else call, True))
  turn = Turn(QUESTION, 0, 0, 0, np.arange(3), {}, 80, (tokenizer.eos_id,))
  (reply,) = speak(policy, [turn], [Toolbox(tuple(tools.TOOLS), tokenizer, calls, tokens=9)])
  np.testing.assert_array_equal(reply.token_ids[~reply.inserted_mask], [*call, *end])
  assert reply.inserted_mask.sum() <= 9
  assert types.runs(reply.inserted_mask) <= 1


def test_a_vocabulary_without_an_equals_sign():
  with pytest.raises(
    ValueError, match="'calculator', which needs a vocabulary with a token for '='"
  ):
    Toolbox(('calculator',), word_level(['a', 'b'])).check()
  tokenizer = word_level(['3', '4', '+', '=', '7'])
  toolbox = Toolbox(('calculator',), tokenizer)
  result = lambda text: toolbox.result(np.asarray(tokenizer.encode(text)), QUESTION)
  assert tokenizer.decode(result('3 + 4 =')) == '7'
  assert len(result('4 + 4 =')) == 0  # no word for 8


# A tool of the user's own, named test_tools:WEATHER and test_tools:BROKEN.
WEATHER = Tool('?', lambda message, question: 'rain' if message.endswith('Oslo?') else None)
BROKEN = Tool('?', lambda message, question: 1 / 0)
OLD = Tool('?', lambda message: None)
SAYS = lambda message, question: 'rain'
NO_MARK, BLANK, NUMBER = Tool('', SAYS), Tool(' ', SAYS), Tool(5, SAYS)
BUILT_IN = Tool('?', str)
NO_RESULT, TEXT, NO_CHECK = Tool('?', None), Tool('?', 'rain'), Tool('?', SAYS, check=True)
ONE_WORD, NO_WORDS = Tool('?', SAYS, words='rain'), Tool('?', SAYS, words=('rain', 5))


def test_a_tool_of_ones_own_stands_beside_the_others(monkeypatch):
  monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent))
  policy = writer('3 + 4 =', ' Oslo?', '.')
  batch = converse(policy, tools=('calculator', 'test_tools:WEATHER'))
  assert batch.messages[0].text == '3 + 4 = 7 Oslo? rain.'
  assert texts(batch.messages[0], batch.messages[0].inserted) == ' 7 rain'
  with pytest.raises(ValueError, match=r"'test_tools:BROKEN'.*ZeroDivisionError"):
    converse(writer('why?', '.'), tools=('test_tools:BROKEN',))


def test_an_endpoints_count_of_tokens_outlasts_the_tools_of_others():
  team = st.team('debate', tools=('calculator',))
  counted = lambda turns: [Reply.given([TOKENIZER.eos_id], True, usage=(9, 3)) for _ in turns]
  prompt, stops = np.arange(5, dtype=np.int32), (TOKENIZER.eos_id,)
  turns = [Turn(QUESTION, 0, agent, 0, prompt, {}, 9, stops) for agent in range(2)]
  found = speak(counted, turns, [Toolbox((), TOKENIZER), team.toolboxes(TOKENIZER)[1]])
  assert found[0].usage == (9, 3)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'tools': ('abacus',)}, r"team.roles.agent.tools='abacus' is unknown; use .*calculator"),
    ({'tools': ('test_tools:TOKENIZER',)}, r'is a Tokenizer; must be a teams.tools.Tool'),
    ({'tools': ('test_tools:BUILT_IN',)}, r"tools='test_tools:BUILT_IN': ValueError: no signature"),
    ({'tools': ('test_tools:OLD',)}, r'must take two arguments, message and question'),
    *(
      (
        {'tools': (f'test_tools:{name}',)},
        rf"tools='test_tools:{name}': {field} is .*; must be {must}",
      )
      for field, must, names in (
        ('mark', 'a text that is not blank', ('NO_MARK', 'BLANK', 'NUMBER')),
        ('result', 'a function', ('NO_RESULT', 'TEXT')),
        ('check', 'a function', ('NO_CHECK',)),
        ('words', 'a tuple of texts', ('ONE_WORD', 'NO_WORDS')),
      )
      for name in names
    ),
    ({'tools': 'calculator'}, r"tools='calculator' must be a tuple"),
  ],
)
def test_roles_with_unknown_tools(fields, message, monkeypatch):
  monkeypatch.syspath_prepend(str(pathlib.Path(__file__).parent))
  with pytest.raises(ValueError, match=message):
    st.team('single', **fields)
