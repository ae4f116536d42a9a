"""Tests roles, topologies, transcripts and the rollout."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest
import scripted_teams as st
import tokenizers
from hypothesis import given
from hypothesis import strategies as hs

from agent_gspo.models.text import tokenizer_backends
from agent_gspo.models.text.tokenizer import Tokenizer, word_level
from agent_gspo.teams import topology as topologies
from agent_gspo.teams.conversation import fair_shares
from agent_gspo.teams.policies import ScriptedPolicy
from agent_gspo.teams.prompts import PromptWriter
from agent_gspo.teams.roles import Role, make_role
from agent_gspo.teams.rollout import rollout
from agent_gspo.teams.team import make_team
from agent_gspo.teams.topology import Topology, make_topology


def topology(name: str, rounds: int = 1) -> Topology:
  return make_topology(name, rounds=rounds, **st.TOPOLOGIES[name])


# Topologies.


@pytest.mark.parametrize(
  ('name', 'layers', 'reads_now', 'reads_before'),
  [
    ('single', ((0,),), {}, {}),
    ('chain', ((0,), (1,), (2,)), {1: [0], 2: [1]}, {0: [1], 1: [2]}),
    ('star', ((0, 1), (2,)), {2: [0, 1]}, {0: [2], 1: [2]}),
    ('complete', ((0,), (1,), (2,)), {1: [0], 2: [0, 1]}, {0: [1, 2], 1: [2]}),
    ('debate', ((0, 1, 2),), {}, {0: [1, 2], 1: [0, 2], 2: [0, 1]}),
    ('layered', ((0,), (1, 2), (3,)), {1: [0], 2: [0], 3: [1, 2]}, {0: [1, 2], 1: [3], 2: [3]}),
    ('dag', ((0, 1), (2, 3)), {2: [0, 1], 3: [0]}, {0: [2, 3], 1: [2]}),
  ],
)
def test_topology_says_who_speaks_when_and_reads_whom(name, layers, reads_now, reads_before):
  found = topology(name, rounds=2)
  assert found.layers == found.turns(0) == layers
  for agent in range(found.num_agents):
    now = reads_now.get(agent, [])
    assert found.reads(agent, 0) == tuple((a, 0) for a in now)
    before = [(a, 0) for a in reads_before.get(agent, [])]
    assert found.reads(agent, 1) == (*before, *((a, 1) for a in now))


def test_every_named_topology_is_tested():
  assert set(st.TOPOLOGIES) == set(topologies.TOPOLOGIES)


def test_judge_speaks_once_and_reads_everybody():
  found = topology('debate', rounds=2).with_judge()
  assert found.turns(0) == ((0, 1, 2),)
  assert found.turns(1) == ((0, 1, 2), (3,))
  assert found.reads(3, 1) == ((0, 1), (1, 1), (2, 1))


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'name': 'ring', 'num_agents': 2}, "team.topology='ring' is unknown; use one of single"),
    ({'name': 'single', 'num_agents': 2}, 'has one agent, but team.agents names 2'),
    ({'name': 'star', 'num_agents': 0}, '0 agents'),
    ({'name': 'star', 'num_agents': 2, 'rounds': 0}, 'team.rounds=0'),
    ({'name': 'star', 'num_agents': 2, 'edges': [(0, 1)]}, 'team.edges is for'),
    ({'name': 'star', 'num_agents': 2, 'layers': [1, 1]}, 'team.layers is for'),
    ({'name': 'layered', 'num_agents': 3, 'layers': [1, 1]}, 'add up to the 3'),
    ({'name': 'layered', 'num_agents': 2, 'layers': [2, 0]}, 'positive sizes'),
    ({'name': 'layered', 'num_agents': 2}, r'team.layers=\(\)'),
    ({'name': 'star', 'num_agents': 2, 'back_edges': [(0, 1)]}, 'team.back_edges is for'),
    ({'name': 'dag', 'num_agents': 2}, r'team.edges=\(\) with .*no agent reads another'),
    (
      {'name': 'dag', 'num_agents': 2, 'back_edges': [(0, 1)]},
      'team.rounds=1: no agent reads another',
    ),
    (
      {'name': 'dag', 'num_agents': 2, 'rounds': 2, 'back_edges': [(0, 2)]},
      r'back_edges: \(0, 2\) must join',
    ),
    (
      {'name': 'dag', 'num_agents': 2, 'rounds': 2, 'back_edges': [0]},
      'back_edges: 0 must be agent',
    ),
    ({'name': 'dag', 'num_agents': 2, 'edges': [(0, 2)]}, r'team.edges: \(0, 2\) must join'),
    ({'name': 'dag', 'num_agents': 2, 'edges': [(1, 1)]}, r'team.edges: \(1, 1\) must join'),
    (
      {'name': 'dag', 'num_agents': 2, 'edges': [(0, 1, 1)]},
      r'team.edges: \(0, 1, 1\) must be agent',
    ),
    ({'name': 'dag', 'num_agents': 2, 'edges': [('a', 'b')]}, r"team.edges: \('a', 'b'\) must be"),
    (
      {'name': 'dag', 'num_agents': 4, 'edges': [(0, 1), (1, 2), (2, 1)]},
      r'cycle through the agents \[1, 2\]',
    ),
  ],
)
def test_topology_errors_name_the_field(arguments, message):
  with pytest.raises(ValueError, match=message):
    make_topology(**arguments)


def test_back_edges_of_a_dag_are_its_own_where_given():
  found = make_topology('dag', 3, rounds=2, edges=[(0, 2), (1, 2)], back_edges=[(0, 1)])
  assert found.reads(1, 1) == ((0, 0),)
  assert found.reads(0, 1) == ()
  assert make_topology('dag', 3, rounds=2, edges=[(0, 2)], back_edges=()).reads(0, 1) == ()


def test_messages_of_a_round_are_read_in_the_order_of_writing():
  found = make_topology('dag', 3, rounds=2, edges=[(2, 0), (0, 1), (2, 1)], back_edges=[(1, 2)])
  assert found.layers == ((2,), (0,), (1,))
  assert found.reads(1, 0) == ((2, 0), (0, 0))
  everybody = Topology(3, found.edges, frozenset({(0, 2), (1, 2)}), 2)
  assert everybody.reads(2, 1) == ((0, 0), (1, 0))


def test_a_dag_without_edges_may_have_a_judge():
  team = {'agents': ('a', 'b'), 'topology': 'dag', 'decision': 'judge', 'back_edges': ()}
  roles = {name: {'opening': '{question}'} for name in ('a', 'b', 'judge')}
  found = make_team(team | {'roles': roles}).topology
  assert (found.edges, found.previous_round) == ({(0, 2), (1, 2)}, frozenset())


def test_no_message_is_read_twice_by_the_same_agent():
  for name in st.TOPOLOGIES:
    found = topology(name, rounds=4)
    for agent in range(found.num_agents):
      read = [message for r in range(4) for message in found.reads(agent, r)]
      assert len(set(read)) == len(read)
  with pytest.raises(ValueError, match='and again in the next one'):
    Topology(2, edges=frozenset({(0, 1)}), previous_round=frozenset({(0, 1)}), rounds=2)


# Roles.


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (
      {'colour': 'red'},
      'team.roles.x.colour is unknown; a role has chat_variables, cue, ex',
    ),
    ({'style': 'poem'}, "team.roles.x.style='poem' is unknown; use one of plain, chat"),
    ({'tools': (3,)}, r'team.roles.x.tools=\(3,\) must be names of tools'),
    ({'system': 3}, 'team.roles.x.system=3 must be text'),
    ({'max_tokens': 'many'}, "team.roles.x.max_tokens='many' must be a whole number"),
    ({'max_tokens': True}, 'team.roles.x.max_tokens=True must be a whole number'),
    ({'max_tokens': -1}, 'team.roles.x.max_tokens=-1 must be a whole number, 0 or more'),
    (
      {'opening': '{question} {hint}'},
      r"uses 'hint'; it may use \{answer\}, \{budget\}, \{note\}, \{price\}, \{question\}",
    ),
    ({'opening': '{question'}, 'team.roles.x.opening=.* is malformed'),
    ({'opening': '{question!r}'}, "uses '!r'"),
    ({'incoming': '{sender}:'}, r'team.roles.x.incoming=.* must contain \{message\} once'),
    ({'incoming': '{message}{message}'}, r'must contain \{message\} once'),
    ({'incoming': '{{message}}'}, r'must contain \{message\} once'),
    ({'incoming': '{message:>9}'}, "uses ':>9'"),
    ({'separator': ''}, 'team.roles.x.separator is empty'),
    ({'examples': [('a', 'b', 'c')]}, 'must be .context, message. pairs'),
    ({'chat_variables': ['x']}, 'chat_variables=.* must be a section of fields'),
    ({'chat_variables': {'x': 1}}, "chat_variables=.*needs a chat template; set .*style='chat'"),
    ({'style': 'chat', 'chat_variables': {'messages': []}}, "holds 'messages'"),
    ({'style': 'chat', 'chat_variables': {'x': 1, 'bos_token': ''}}, "holds 'bos_token'"),
    ({'style': 'chat', 'chat_variables': {'x': float('nan')}}, 'must be plain JSON'),
    ({'style': 'chat', 'chat_variables': {'x': [{1: 2}]}}, 'must be plain JSON'),
    ({'style': 'chat', 'chat_variables': {'x': object()}}, 'must be plain JSON'),
    ({'style': 'chat', 'chat_variables': {'x': '\ud800'}}, 'must be plain JSON'),
  ],
)
def test_role_errors_name_the_field(fields, message):
  with pytest.raises(ValueError, match=message):
    make_role('x', fields)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'agents': ('a', 'c')}, "names the role 'c', which team.roles does not define"),
    ({'decision': 'judge'}, "names the role 'judge'"),
    ({'decision': 'dice'}, "team.decision='dice' is unknown"),
    (
      {'max_message_tokens': 0},
      'team.max_message_tokens=0 must be a whole number from 1 to 1048576',
    ),
    ({'max_episode_tokens': -1}, r'team.max_episode_tokens=-1 must be a whole number from 0 to'),
    ({'agents': ('a', 'a', 'a1')}, 'has repeated names: a1, a2, a1; rename'),
  ],
)
def test_team_errors_name_the_field(changes, message):
  section = {
    'agents': ('a', 'b'),
    'roles': {'a': {}, 'b': {}, 'a1': {}},
    'topology': 'complete',
    'rounds': 1,
    'edges': (),
    'layers': (),
    'decision': 'last',
    'max_message_tokens': 4,
    'max_episode_tokens': 0,
  }
  assert make_team(section).names == ('a', 'b')
  with pytest.raises(ValueError, match=message):
    make_team({**section, **changes})


def test_separator_must_be_one_token():
  writer = PromptWriter(Role(name='x', separator='ends here'), st.byte_tokenizer())
  with pytest.raises(ValueError, match=r'team.roles.x.separator=.* is 9 tokens'):
    _ = writer.stop_ids


# Transcripts.


def random_ids(seed: int, tokenizer, vocabulary: str):
  """Returns a script of random messages, a third of them silent, some cut off."""

  def ids(turn):
    rng = random.Random(f'{seed}/{turn.question.id}/{turn.sample}/{turn.agent}/{turn.round}')
    length = rng.choice([0, rng.randint(1, turn.limit - 1), turn.limit])
    written = [tokenizer.backend.token_to_id(rng.choice(vocabulary)) for _ in range(length)]
    ended = length < turn.limit
    return [*written, *[rng.choice(turn.stop_ids)] * ended], ended

  return ids


@pytest.mark.parametrize('style', ['plain', 'chat'])
@pytest.mark.parametrize('name', sorted(st.TOPOLOGIES))
@pytest.mark.parametrize('decision', ['last', 'judge'])
def test_later_prompts_extend_earlier_ones_by_what_was_sampled(name, style, decision):
  tokenizer = st.byte_tokenizer()
  team = st.team(name, style=style, rounds=3, decision=decision)
  policy = st.IdsPolicy(random_ids(0, tokenizer, 'abcd'))
  batch = rollout(team, st.Echo(), tokenizer, st.questions(2), 3, policy)
  newline = tokenizer.encode('\n')
  turns_seen = 0
  for episode in range(6):
    for agent in range(team.num_agents):
      own = [m for m in batch.messages if (m.episode, m.agent) == (episode, agent)]
      for earlier, later in itertools.pairwise(own):
        path = earlier.path.tolist()
        if style == 'plain' and not earlier.ended:
          path += newline  # what was cut off is closed before the conversation goes on
        assert later.prompt_ids[: len(path)].tolist() == path
        turns_seen += 1
  assert turns_seen == 6 * 2 * st.TOPOLOGIES[name]['num_agents']


@pytest.mark.parametrize('system', ['', 'You add.'])
def test_chat_prompt_is_what_the_template_renders(system):
  """The decoded prompt equals the template's rendering of the whole conversation."""
  tokenizer = st.byte_tokenizer()
  team = st.team('complete', style='chat', rounds=3, system=system, examples=[('Q 1\n', 'b')])
  role = team.roles[0]
  policy = st.IdsPolicy(random_ids(1, tokenizer, 'abcd'))
  batch = rollout(team, st.Echo(), tokenizer, st.questions(2), 2, policy)
  text = {(m.episode, m.agent, m.round): m.text for m in batch.messages}
  for message in batch.messages:
    shown = [{'role': 'system', 'content': system}] if system else []
    shown.append({'role': 'user', 'content': 'Q 1\n' + role.cue})
    shown.append({'role': 'assistant', 'content': 'b'})
    for round_ in range(message.round + 1):
      content = role.opening.format(question=batch.questions[message.episode // 2].text, note='')
      content = content if round_ == 0 else ''
      for author, when in team.topology.reads(message.agent, round_):
        if said := text[message.episode, author, when]:
          content += role.incoming.format(sender=team.names[author], message=said)
      shown.append({'role': 'user', 'content': content + role.cue})
      if round_ < message.round:
        own = text[message.episode, message.agent, round_]
        shown.append({'role': 'assistant', 'content': own})
    rendered = tokenizer.render_chat(shown, add_generation_prompt=True)
    assert tokenizer.decode(message.prompt_ids) == rendered


def test_plain_prompt_word_for_word():
  tokenizer = st.byte_tokenizer()
  team = st.team('chain', rounds=2, system='Add.\n', examples=[('Q 1\n', ' 2'), ('Q 3\n', '')])
  said = {0: [' hi', ''], 1: ['', ' yo'], 2: [' ok', ' 4']}
  script = ScriptedPolicy(lambda turn: said[turn.agent][turn.round], tokenizer)
  batch = rollout(team, st.Echo(), tokenizer, st.questions(1, notes=1), 1, script)
  prompts = {
    (m.agent, m.round): tokenizer.decode(m.prompt_ids).replace('<|im_end|>', '|')
    for m in batch.messages
  }
  preamble = 'Add.\nQ 1\nsay : 2\nQ 3\nsay :\n'
  assert prompts[0, 0] == f'{preamble}Q 0 note 7\nsay :'
  assert prompts[1, 0] == f'{preamble}Q 0 note \nfrom agent1 :  hi\nsay :'
  assert prompts[2, 0] == f'{preamble}Q 0 note \nsay :'  # agent2 was silent
  assert prompts[0, 1] == f'{prompts[0, 0]} hi|say :'
  assert prompts[1, 1] == f'{prompts[1, 0]}|from agent3 :  ok\nsay :'
  assert prompts[2, 1] == f'{prompts[2, 0]} ok|from agent2 :  yo\nsay :'


@pytest.mark.parametrize('style', ['plain', 'chat'])
def test_nobody_tokenises_what_was_sampled(style):
  """'ab' is one token; an agent that sampled 'a' and 'b' apart is quoted with its own ids."""
  tokenizer = st.byte_tokenizer()
  a, b, ab = (tokenizer.backend.token_to_id(t) for t in ('a', 'b', 'ab'))
  assert tokenizer.encode('ab') == [ab]
  policy = st.IdsPolicy(lambda turn: ([a, b, tokenizer.eos_id], True))
  team = st.team('chain', style=style, rounds=2)
  batch = rollout(team, st.Echo(), tokenizer, st.questions(1), 1, policy)
  assert all(m.text == 'ab' for m in batch.messages)
  for message in batch.messages:
    expected = len(team.topology.reads(message.agent, message.round)) + message.round
    if message.round == 1:  # what was read and written in round 0 is still there
      expected += len(team.topology.reads(message.agent, 0))
    prompt = message.prompt_ids.tolist()
    assert sum(prompt[i : i + 2] == [a, b] for i in range(len(prompt))) == expected
    assert ab not in prompt


@pytest.mark.parametrize('style', ['plain', 'chat'])
def test_silence_reaches_nobody_and_stays_with_its_author(style):
  tokenizer = st.byte_tokenizer()
  eos = tokenizer.eos_id
  team = st.team('star', style=style, rounds=2)
  says = lambda turn: '' if turn.agent == 0 and turn.round == 0 else 'c'
  policy = ScriptedPolicy(says, tokenizer)
  batch = rollout(team, st.Echo(), tokenizer, st.questions(1), 1, policy)
  by_turn = {(m.agent, m.round): m for m in batch.messages}
  silent = by_turn[0, 0]
  assert silent.silent
  assert silent.written == silent.readers == 0
  assert silent.token_ids.tolist() == [eos]
  assert by_turn[0, 1].prompt_ids[: silent.read + 1].tolist() == [*silent.prompt_ids, eos]
  reader = tokenizer.decode(by_turn[2, 0].prompt_ids)
  assert 'agent1' not in reader
  assert 'from agent2 : c\n' in reader


def test_plain_messages_also_end_at_the_separator():
  tokenizer = st.byte_tokenizer()
  newline = tokenizer.encode('\n')
  writer = PromptWriter(Role(name='x'), tokenizer)
  assert set(writer.stop_ids) == {tokenizer.eos_id, *newline}
  assert PromptWriter(Role(name='x', style='chat'), tokenizer).stop_ids == (tokenizer.eos_id,)
  policy = st.IdsPolicy(lambda turn: (newline, True))
  batch = rollout(st.team('chain'), st.Echo(), tokenizer, st.questions(1), 1, policy)
  assert all(m.silent for m in batch.messages)


@pytest.mark.parametrize('style', ['plain', 'chat'])
def test_each_eos_of_the_model_ends_a_message(style):
  backend = st.byte_tokenizer().backend
  template = st.byte_tokenizer().chat_template
  tokenizer = Tokenizer(backend, '<|im_end|>', chat_template=template, more_eos=['<|im_start|>'])
  other = tokenizer.encode('<|im_start|>')
  policy = st.IdsPolicy(lambda turn: ([*tokenizer.encode('ab' * turn.agent), *other], True))
  writer = PromptWriter(Role(name='x', style=style), tokenizer)
  assert {*other, tokenizer.eos_id} <= {*writer.stop_ids} & {*writer.silence_ids}
  batch = rollout(st.team('chain', style=style), st.Echo(), tokenizer, st.questions(1), 1, policy)
  for message in batch.messages:
    assert (message.text, message.ended) == ('ab' * message.agent, True)
    assert (message.silent, message.written) == (not message.agent, message.agent)
    assert message.token_ids.tolist()[-1:] == other
    assert message.sampled.all()


def test_plain_prompts_begin_with_bos_where_the_model_says_so():
  """Templates write BOS themselves, and so may the user."""
  tokenizer = st.byte_tokenizer()
  backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
  tokenizer_backends.begin_with(backend, '<|im_start|>')
  begun = Tokenizer(backend, '<|im_end|>', '<|im_start|>', chat_template=tokenizer.chat_template)
  begin = lambda **role: PromptWriter(Role(name='x', **role), begun).preamble.tolist()
  assert begin() == [begun.bos_id]
  assert begin(system='ab') == [begun.bos_id, *begun.encode('ab')]
  assert begin(system='<|im_start|>ab') == [begun.bos_id, *begun.encode('ab')]
  assert begin(style='chat') == []
  assert PromptWriter(Role(name='x'), tokenizer).preamble.tolist() == []


def test_chat_messages_also_end_where_the_template_ends_them():
  tokenizer = st.byte_tokenizer()
  base = Tokenizer(tokenizer.backend, '<|im_start|>', chat_template=tokenizer.chat_template)
  end = base.encode('<|im_end|>')
  assert set(PromptWriter(Role('x', style='chat'), base).stop_ids) == {base.eos_id, *end}


@pytest.mark.parametrize('how', ['separator', 'cap', 'end of text'])
def test_a_frame_is_whole_however_the_message_before_it_ended(how):
  tokenizer = st.byte_tokenizer()
  newline = tokenizer.encode('\n')
  ends = {'separator': newline, 'cap': [], 'end of text': [tokenizer.eos_id]}[how]
  policy = st.IdsPolicy(lambda turn: ([*tokenizer.encode('5'), *ends], bool(ends)))
  team = st.team('single', rounds=2, cue='\nsay :')
  batch = rollout(team, st.Echo(), tokenizer, st.questions(1), 1, policy)
  assert tokenizer.decode(batch.messages[1].prompt_ids).endswith('\nsay :')
  assert tokenizer.decode(batch.messages[1].prompt_ids).endswith('\n\nsay :') == (
    how != 'end of text'
  )


def punctuation_tokenizer() -> Tokenizer:
  """Bytes, and as Qwen2's the line break in one token with what stands before it."""
  merges = [('.', 'Ċ'), (':', 'Ċ'), ('}', '.Ċ'), ('Ċ', 'Ċ'), ('Ġ', 'Ċ')]
  alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
  vocab = {token: i for i, token in enumerate([*alphabet, *map(''.join, merges)])}
  backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
  backend.pre_tokenizer = tokenizer_backends._pre_tokenizer('qwen2')
  backend.decoder = tokenizers.decoders.ByteLevel()
  backend.add_special_tokens([tokenizers.AddedToken('<|im_end|>', special=True)])
  return Tokenizer(backend, eos_token='<|im_end|>')


def test_examples_end_as_messages_do():
  tokenizer = punctuation_tokenizer()
  (joined,) = tokenizer.encode('.\n')
  role = Role('x', opening='Q {question}.\n', cue='say:')
  examples = (('Q 1.\n', ' one.'), ('Q 2.\n', ''))
  shown = PromptWriter(dataclasses.replace(role, examples=examples), tokenizer)
  lived = []
  for question, (_, said) in zip('12', examples, strict=True):
    writer = PromptWriter(role, tokenizer)
    prompt = writer.begin(dataclasses.replace(st.questions(1)[0], text=question), 0).prompt([])
    lived += [*prompt.tolist(), *tokenizer.encode(said), *tokenizer.encode('\n')]
  assert joined in lived  # of the openings
  assert shown.preamble.tolist() == lived


@pytest.mark.parametrize(
  ('sampled', 'text', 'written'),
  [
    ('4}.\n', '4}.', 2),  # the last token says something, and counts
    ('.\n', '.', 1),
    ('4.\n\n', '4.', 2),
    ('4\n\n', '4', 1),
    (' \n', '', 0),
  ],
)
def test_a_token_that_holds_the_separator_ends_a_message_and_says_the_rest(sampled, text, written):
  tokenizer = punctuation_tokenizer()

  def ids(turn):
    found = tokenizer.encode(sampled + 'and on')
    end = next(i for i, token in enumerate(found) if token in turn.stop_ids)
    return found[: end + 1], True

  policy = st.IdsPolicy(ids)
  team = st.team('chain', rounds=2, max_message_tokens=9)
  batch = rollout(team, st.Echo(), tokenizer, st.questions(1), 1, policy)
  heard = f'from agent1 : {text}\n' if text else ''
  for message in batch.messages:
    assert (message.text, message.written, message.silent) == (text, written, not text)
    assert len(message.sampled) == len(message.token_ids)
  by_turn = {(m.agent, m.round): m for m in batch.messages}
  reader, again = by_turn[1, 0], by_turn[0, 1]
  assert tokenizer.decode(reader.prompt_ids).endswith(f'{heard}say :')
  own = by_turn[0, 0].path
  np.testing.assert_array_equal(again.prompt_ids[: len(own)], own)


def test_what_readers_are_handed_can_be_longer_than_what_was_sampled():
  tokenizer = punctuation_tokenizer()
  writer = PromptWriter(Role('x'), tokenizer)
  (stop_id,) = tokenizer.encode('}.\n')
  assert writer.tail(stop_id) == tuple(tokenizer.encode('}.'))
  assert writer.longest_said(6) == 7
  blank = tokenizer.encode(' \n')
  assert {*writer.stop_ids} - {*writer.silence_ids} >= {stop_id}
  assert {*blank, tokenizer.eos_id} <= {*writer.silence_ids}
  assert PromptWriter(Role('x'), st.byte_tokenizer()).longest_said(6) == 6


def test_chat_role_needs_a_template():
  team = st.team('single', style='chat')
  policy = ScriptedPolicy(lambda turn: '', word_level(['a']))
  with pytest.raises(ValueError, match='no chat template'):
    rollout(team, st.Echo(), policy.tokenizer, st.questions(1), 1, policy)


# Decisions, caps, readers.


@pytest.mark.parametrize(
  ('decision', 'says', 'answer'),
  [
    ('last', ['1', '1', '2'], '2'),
    ('last', ['1', '1', ''], ''),
    ('majority', ['2', '1', '1'], '1'),
    ('majority', ['', '1', '2'], '1'),  # a tie: the earliest
    ('majority', ['', '', '2'], '2'),
    ('majority', ['', '', ''], ''),
    ('judge', ['2', '2', '2', '1'], '1'),
  ],
)
def test_decisions(decision, says, answer):
  tokenizer = st.byte_tokenizer()
  team = st.team('debate', decision=decision, rounds=2)
  policy = ScriptedPolicy(lambda turn: says[turn.agent] if turn.round else '9', tokenizer)
  batch = rollout(team, st.Echo(), tokenizer, st.questions(2), 2, policy)
  assert batch.answers == (answer,) * 4
  assert batch.task_scores.tolist() == [0.0, 0.0, *[float(answer == '1')] * 2]


@pytest.mark.parametrize('name', sorted(st.TOPOLOGIES))
@pytest.mark.parametrize('cap', [1, 7, 16])
def test_caps_hold(name, cap):
  tokenizer = st.byte_tokenizer()
  a = tokenizer.backend.token_to_id('a')
  team = st.team(name, rounds=2, max_message_tokens=5, max_episode_tokens=cap)
  policy = st.IdsPolicy(lambda turn: ([a] * turn.limit, False))  # all that is allowed
  batch = rollout(team, st.Echo(), tokenizer, st.questions(2), 2, policy)
  spent = np.bincount(
    [m.episode for m in batch.messages], [len(m.token_ids) for m in batch.messages]
  )
  wanted = 5 * 2 * st.TOPOLOGIES[name]['num_agents']
  assert spent.tolist() == [min(cap, wanted)] * 4
  assert team.max_tokens == min(cap, wanted)
  assert max(len(m.token_ids) for m in batch.messages) <= 5


def test_agents_of_a_layer_share_what_is_left_of_a_cap():
  tokenizer = st.byte_tokenizer()
  a = tokenizer.backend.token_to_id('a')
  team = st.team('debate', rounds=2, max_message_tokens=5, max_episode_tokens=12)
  policy = st.IdsPolicy(lambda turn: ([a] * max(turn.limit - turn.agent, 1), False))
  rollout(team, st.Echo(), tokenizer, st.questions(2), 2, policy)
  # 4, 3 and 2 of the 12 are written, so the second round has 3.
  limits = [[t.limit for t in policy.turns if t.round == r] for r in (0, 1)]
  assert limits == [[4, 4, 4] * 4, [1, 1, 1] * 4]


@given(hs.integers(0, 60), hs.lists(hs.integers(1, 20), min_size=1, max_size=6))
def test_shares_are_equal_but_for_caps(total, caps):
  shares = fair_shares(total, caps)
  assert sum(shares) == min(total, sum(caps))
  for share, cap in zip(shares, caps, strict=True):
    assert 0 <= share <= cap
    assert share == cap or share >= max(shares) - 1


def test_a_role_may_have_a_lower_cap():
  assert st.team('single', max_tokens=3).message_cap(0) == 3
  assert st.team('single', max_tokens=6).message_cap(0) == 6
  assert st.team('single').message_cap(0) == 6


@pytest.mark.parametrize('decision', ['last', 'judge'])
def test_a_role_may_not_have_a_higher_cap(decision):
  message = (
    r'team\.roles\.agent\.max_tokens=7 is above team\.max_message_tokens=6, .* Raise team\.max'
  )
  with pytest.raises(ValueError, match=message):
    st.team('debate', decision=decision, max_tokens=7)


def test_script_longer_than_the_cap_is_an_error():
  tokenizer = st.byte_tokenizer()
  policy = ScriptedPolicy(lambda turn: 'c' * 6, tokenizer)
  with pytest.raises(ValueError, match=r'writes 7 tokens .* its cap is 6'):
    rollout(st.team('single'), st.Echo(), tokenizer, st.questions(1), 1, policy)


@pytest.mark.parametrize('name', sorted(st.TOPOLOGIES))
@pytest.mark.parametrize('decision', ['last', 'judge'])
@pytest.mark.parametrize('rounds', [1, 3])
def test_readers_are_the_later_prompts_that_carry_a_message(name, decision, rounds):
  tokenizer = st.numbers_tokenizer(100)
  team = st.team(name, rounds=rounds, decision=decision)
  says = lambda turn: str(50 + 10 * turn.round + turn.agent)  # nobody says the same
  batch = rollout(team, st.Echo(), tokenizer, st.questions(1), 2, ScriptedPolicy(says, tokenizer))
  assert len(batch.messages) == 2 * sum(len(layer) for _, _, layer in team.turns)
  for i, message in enumerate(batch.messages):
    assert message.readers == st.carried(batch, i)
    assert message.readers == team.topology.readers(message.agent, message.round)


# The rollout as a whole.


def test_a_layer_is_one_call_and_messages_come_in_their_order():
  tokenizer = st.byte_tokenizer()
  policy = st.IdsPolicy(lambda turn: ([tokenizer.eos_id], True))
  team = st.team('layered', rounds=2)
  done = []
  rollout(team, st.Echo(), tokenizer, st.questions(3), 2, policy, lambda i, n: done.append((i, n)))
  assert policy.calls == [6, 12, 6] * 2
  assert done == [(i, 6) for i in range(7)]


def test_notes_reach_their_holders_only():
  tokenizer = st.byte_tokenizer()
  policy = ScriptedPolicy(lambda turn: '', tokenizer)
  batch = rollout(st.team('star'), st.Echo(), tokenizer, st.questions(1, notes=2), 1, policy)
  told = [' 7' in tokenizer.decode(m.prompt_ids) for m in batch.messages]
  assert told == [True, True, False]


def test_what_is_sampled_does_not_depend_on_the_batch():
  policy, tokenizer = st.model_policy()
  team = st.team('star')
  asked = st.questions(2, notes=2)

  def run(questions, samples):
    batch = rollout(team, st.Echo(), tokenizer, questions, samples, policy)
    return {
      (batch.questions[q].id, batch.sample[m.episode], m.agent, m.round): m
      for q, m in zip(batch.question, batch.messages, strict=True)
    }

  everything, part = run(asked, 4), run(asked[1:], 3)
  assert len(part) == 3 * 3
  for turn, message in part.items():
    assert message.token_ids.tolist() == everything[turn].token_ids.tolist()
    np.testing.assert_allclose(message.logprobs, everything[turn].logprobs, atol=1e-5)
  # Samples, agents and rounds of the same question have noise of their own.
  texts = [tuple(m.token_ids) for turn, m in everything.items() if turn[0] == 'q0']
  assert len(set(texts)) > len(texts) // 2
  later = dataclasses.replace(policy, step=4)
  other = rollout(team, st.Echo(), tokenizer, asked[1:], 3, later).messages
  assert [tuple(m.token_ids) for m in other] != [tuple(m.token_ids) for m in part.values()]


def test_agents_that_stop_differently_share_a_layer():
  policy, tokenizer = st.model_policy()
  role = {'opening': 'Q {question}\n', 'incoming': 'from {sender} : {message}\n', 'cue': 'say :'}
  section = {
    'agents': ('agent', 'judge'),
    'roles': {'agent': role, 'judge': {**role, 'separator': ':'}},
    'topology': 'debate',
    'rounds': 1,
    'edges': (),
    'layers': (),
    'decision': 'last',
    'max_message_tokens': 6,
    'max_episode_tokens': 0,
  }
  team = make_team(section)
  stops = [set(w.stop_ids) for w in team.prompt_writers(tokenizer)]
  assert stops[0] != stops[1]
  batch = rollout(team, st.Echo(), tokenizer, st.questions(3), 4, policy)
  assert len(batch.messages) == 24
  for message in batch.messages:
    stop_at = [i for i, t in enumerate(message.token_ids.tolist()) if t in stops[message.agent]]
    assert stop_at == ([len(message.token_ids) - 1] if message.ended else [])
