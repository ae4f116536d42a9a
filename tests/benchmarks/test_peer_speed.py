"""Checks that libraries are timed on the work that its docstring describes."""

import argparse

import jax
import pytest

from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.models.transformer import init_params
from benchmarks.peers import agent_gspo_steps, work


@pytest.mark.parametrize('shape', work.SHAPES)
def test_parameters_are_those_of_a_llama_of_this_shape(shape):
  of = work.SHAPES[shape]
  config = agent_gspo_steps.model_config(of)
  params = jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))
  assert sum(x.size for x in jax.tree.leaves(params)) == work.parameters(of)


def test_prompts_have_their_length_and_no_token_can_end_a_message():
  tokenizer = Tokenizer(work.backend(), eos_token=work.EOS, pad_token=work.PAD)
  texts = work.questions(3)
  assert len(set(texts)) == 3 * work.PROMPTS
  ids = [tokenizer.encode(text) for text in texts]
  assert {len(row) for row in ids} == {work.PROMPT_TOKENS}
  assert max(map(max, ids)) < work.VOCABULARY <= min(tokenizer.eos_id, tokenizer.pad_id)
  assert work.score('w2 w3 w4 w7') == 0.5


def test_clock_adds_phases_up_and_refuses_short_messages(capsys):
  clock = work.Clock(argparse.Namespace(warmup=1))
  for _ in range(3):
    clock.timed('rollout', sum)(range(1000))
    clock.timed('rollout', sum)(range(1000))
    clock.end_step()
  clock.report({'peer': '1'})
  assert '"peer": "1"' in capsys.readouterr().out.splitlines()[-1]
  assert all(0 < step['rollout_s'] <= step['step_s'] for step in clock.steps)
  with pytest.raises(AssertionError, match='4095 tokens'):
    clock.wrote(4095)
