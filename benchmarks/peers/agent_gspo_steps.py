"""Runs the work of `work.py` with this project: a team of one."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import jax

from agent_gspo.config import check as config_lib
from agent_gspo.config import default_config
from agent_gspo.models.config import ModelConfig
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.models.transformer import Transformer, init_params
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.sharding.placement import ONE_DEVICE
from agent_gspo.tasks.base import Task
from agent_gspo.teams.sharing import make_sharing
from agent_gspo.teams.team import make_team
from agent_gspo.training import host_memory, train_step
from agent_gspo.training import learner as learner_lib
from agent_gspo.training.setup import Setup, init_state, make_learner
from agent_gspo.types import Question
from benchmarks.peers import work


class Words(Task):
  """Task with prompts of random words; the score of an answer is its share of even words."""

  name = 'words'

  def __init__(self, texts: list[str]):
    self._questions = [Question(id=f'words-{i}', text=t, answer='') for i, t in enumerate(texts)]

  def _split(self, split: str) -> list[Question]:
    return self._questions

  def score(self, question: Question, answer_text: str) -> float:
    return work.score(answer_text)


class Quiet:
  """Shows no progress."""

  def phase(self, *_) -> None:
    pass


def main() -> None:
  """Runs the work and prints the report."""
  host_memory.keep()  # as all commands do
  options = work.options()
  clock = work.Clock(options)
  shape = work.SHAPES[options.shape]
  steps = options.warmup + options.steps
  config = config_lib.resolve(_config(steps))
  team = make_team(config.team)
  model = model_config(shape)
  params = init_params(model, jax.random.key(0))
  assert sum(x.size for x in jax.tree.leaves(params)) == work.parameters(shape)
  sizes = {name: n for name, n in config.sampler.to_dict().items() if name != 'gather_weights'}
  setup = Setup(
    config=config,
    task=Words(work.questions(steps)),
    team=team,
    sharing=make_sharing(config.policy, team.names, lora_rank=0, learning_rate=work.LEARNING_RATE),
    model=Transformer(model),
    params=params,
    tokenizer=Tokenizer(work.backend(), eos_token=work.EOS, pad_token=work.PAD),
    sampler=Sampler(model, max_new_tokens=work.WRITTEN_TOKENS, **sizes),
    placement=ONE_DEVICE,
    source='',
    note='',
    training=True,
  )
  learner = make_learner(setup)
  state = init_state(setup, params)
  train_step.collect = clock.timed('rollout', train_step.collect)

  def update(*arguments):
    state, metrics = optimizer_steps(*arguments)
    jax.block_until_ready(state.trainable)
    return state, metrics

  optimizer_steps, learner_lib.Learner.update = (
    learner_lib.Learner.update,
    clock.timed('update', update),
  )
  clock.start()
  for _ in range(steps):
    result = train_step.train_step(setup, learner, state, Quiet())
    state = result.state
    clock.wrote(sum(len(message.token_ids) for message in result.rollout.messages))
    assert result.metrics['policy/grad_norm'] > 0
    clock.end_step()
  clock.report({'jax': jax.__version__})


def model_config(shape: dict[str, int]) -> ModelConfig:
  """Returns the decoder of one of `work.SHAPES`."""
  return ModelConfig(
    family='llama',
    vocab_size=work.VOCABULARY,
    num_layers=shape['layers'],
    embed_dim=shape['width'],
    num_heads=shape['heads'],
    num_kv_heads=shape['kv_heads'],
    head_dim=work.HEAD_DIM,
    mlp_dim=shape['mlp'],
    rope_theta=work.ROPE_THETA,
    norm_eps=work.NORM_EPS,
  )


def _config(steps: int) -> dict:
  config = default_config()
  config.algorithm = 'gspo'
  config.steps = steps
  config.team.agents, config.team.topology = ('solver',), 'single'
  config.team.max_message_tokens = work.WRITTEN_TOKENS
  config.team.roles.solver = {'opening': '{question}', 'cue': '', 'separator': work.EOS}
  config.rollout.questions, config.rollout.group_size = work.PROMPTS, work.SAMPLES
  config.objective.clip_low, config.objective.clip_high = work.CLIP_LOW, work.CLIP_HIGH
  # All prompts share a row, all samples of a question another: shared prefixes are packed once.
  config.sampler.prefill_length = work.PROMPTS * work.PROMPT_TOKENS
  config.sampler.prefill_rows = 1
  config.learner.pack_length = work.PROMPT_TOKENS + work.SAMPLES * work.WRITTEN_TOKENS
  config.learner.micro_batch_size = 1  # a row of samples is enough work for a core
  config.learner.minibatches = 1
  config.learner.learning_rate = work.LEARNING_RATE
  config.learner.b2, config.learner.grad_clip = 0.999, work.GRAD_CLIP
  return config.to_dict()


if __name__ == '__main__':
  main()
