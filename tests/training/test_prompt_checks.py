"""Checks that a run's longest prompt is found before it, anywhere in the split."""

from __future__ import annotations

import copy
import dataclasses

import micro_run
import pytest

from agent_gspo.config import check as config_lib
from agent_gspo.tasks.base import Task
from agent_gspo.training import prompt_checks
from agent_gspo.types import Question


class _Texts(Task):
  """Has the given training questions."""

  name = 'texts'

  def __init__(self, texts):
    self._questions = [Question(f'q{i}', text, 'x') for i, text in enumerate(texts)]

  def _split(self, split):
    return self._questions if split == 'train' else self._questions[:4]

  def score(self, question, answer_text):
    """Grades nothing."""
    return 0.0


def _check(parts, tokenizer, pack_length):
  learner = dataclasses.replace(parts.config.learner, pack_length=pack_length)
  config = dataclasses.replace(parts.config, learner=learner)
  return prompt_checks.check(dataclasses.replace(parts, config=config), tokenizer, {'': 2048})


@pytest.mark.parametrize('place', [3, 999, 1000, 2999])
def test_a_question_may_be_the_longest_anywhere_and_not_by_characters(place):
  parts = config_lib.check(micro_run.changed(sft__steps=0))
  tokenizer = prompt_checks.tokenizer_from_scratch(parts)
  words = sorted(parts.task.vocabulary(), key=len)
  short, long = words[0], words[-1]
  assert 4 * len(short) < len(long)
  # 300 others have more characters, in fewer words.
  texts = [' '.join([long] * 30 if i % 10 == 0 else [long]) for i in range(3000)]
  texts[place] = ' '.join([short] * 50)
  assert len(texts[place]) < len(texts[0] if place else texts[30])
  parts = dataclasses.replace(parts, task=_Texts(texts))

  found = _check(parts, tokenizer, 10**4)
  needed = max(lengths.turns[-1] for lengths in found) + parts.team.max_message_tokens
  assert needed > 50
  _check(parts, tokenizer, needed)
  message = rf'learner.pack_length={needed - 1} is too short: question q{place} can lead'
  with pytest.raises(ValueError, match=message):
    _check(parts, tokenizer, needed - 1)


@pytest.mark.parametrize('split', ['validation', 'further'])
def test_questions_of_sft_alone_are_read_too(split):
  values = {'sft__steps': 2, 'sft__validation_questions': 2, 'evaluation__seen_questions': 0}
  parts = config_lib.check(micro_run.changed(**values))
  tokenizer, task = prompt_checks.tokenizer_from_scratch(parts), parts.task
  (question,) = task.questions('train')[:1]

  def changed(text):
    other = copy.copy(task)
    added = [dataclasses.replace(question, id='of_sft', text=text)]
    other.questions = lambda name: added if name == split else task.questions(name)
    other.further_demonstrations = lambda: added if split == 'further' else []
    return dataclasses.replace(parts, task=other)

  with pytest.raises(ValueError, match=r"question of_sft of task .* holds the word 'xylophone'"):
    _check(changed('xylophone'), tokenizer, 64)
  with pytest.raises(ValueError, match=r'learner\.pack_length=64 is too short: question of_sft'):
    _check(changed(' '.join([question.text] * 9)), tokenizer, 64)


def test_the_longest_told_words_count():
  def longest(*words):
    told = {'budget__mode': 'conditioned', 'budget__told_words': words}
    opening = {'team__roles__informant__opening': '{price} {question} note : {note}'}
    parts = config_lib.check(micro_run.changed(sft__steps=0, **told, **opening))
    found = _check(parts, prompt_checks.tokenizer_from_scratch(parts), 10**4)
    return max(lengths.turns[-1] for lengths in found[:2])

  assert longest('extraordinarily', 'a b c d') == longest('extraordinarily', 'a') + 3


def test_a_sample_of_an_endless_split_is_checked():
  """Generated questions are made on demand."""
  parts = config_lib.check(micro_run.changed(sft__steps=0))
  asked = []

  class Counted(_Texts):
    def questions(self, split):
      split_ = parts.task.questions(split)

      class Questions:
        def __len__(self):
          return len(split_)

        def __getitem__(self, place):
          asked.append(place)
          return split_[place]

      return Questions() if split == 'train' else split_

  tokenizer = prompt_checks.tokenizer_from_scratch(parts)
  _check(dataclasses.replace(parts, task=Counted(['x'])), tokenizer, 64)
  assert len(parts.task.questions('train')) == 10**6
  assert len(asked) < 10**4
  assert max(asked) > 9 * 10**5


@pytest.mark.parametrize('counted', [True, False])
def test_prompts_at_which_an_evaluation_scores_gold_answers_fit_a_row(counted):
  """The answering agent's model is frozen, and has the longest prompts."""
  config = micro_run.changed(sft__steps=0, evaluation__worth_questions=2 * counted)
  config['team']['roles']['solver'].update(
    model='hf:other', trains=False, system='the answer ' * 30
  )
  parts = config_lib.check(config)
  tokenizer = prompt_checks.tokenizer_from_scratch(parts)
  team = dataclasses.replace(parts.team, tokenizers={'hf:other': tokenizer})
  parts, contexts = dataclasses.replace(parts, team=team), {'': 2048, 'hf:other': 2048}
  if counted:
    with pytest.raises(ValueError, match=r'learner\.pack_length=64 is too short'):
      prompt_checks.check(parts, tokenizer, contexts)
  else:
    prompt_checks.check(parts, tokenizer, contexts)
