"""Defines a task of a generator of the library reasoning-gym, extra `reasoning_gym`.

The library's scorers have pitfalls (version 0.1.25): they give partial credit to text that contains
the answer, some give any text, "0" or "nan" a full point, one reads "-3" as 3, one raises on text
that is no number, and few parse "The answer is X". So the answer is extracted here, and only a full
point counts.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from agent_gspo.options import check_fields, option
from agent_gspo.tasks import base
from agent_gspo.tasks.data import draws
from agent_gspo.tasks.grading import answer_marks, numeric
from agent_gspo.tasks.lazy import LazyQuestions
from agent_gspo.types import Question
from agent_gspo.values import shown

_BUCKETS = {'train': range(3, 10), 'validation': range(2, 3), 'test': range(2)}  # of 10
_TRIES = 1000
_SIGNLESS = 'gsm_symbolic'  # its scorer never reads a minus sign


@dataclasses.dataclass(eq=False, kw_only=True)
class ReasoningGym(base.Task):
  """Questions of one generator; splits share no text.

  Question `i` of a split depends on `(seed, split, i)` and the options alone.

  Raises:
    ImportError: if reasoning-gym is not installed.
    ValueError: if it has no such generator, or one whose questions have no answer to compare with.
  """

  name = 'reasoning_gym'

  dataset: str = 'leg_counting'  # generator
  settings: dict = dataclasses.field(default_factory=dict)  # options of the generator
  seed: int = option(0, least=0, most=10**6)
  train_size: int = option(10_000, least=0, most=10**6)
  validation_size: int = option(200, least=0, most=10**6)
  test_size: int = option(500, least=0, most=10**6)

  def __post_init__(self):
    check_fields(self, 'task.options')
    for name, own in (('size', 'train_size'), ('seed', 'seed')):
      if name in self.settings:
        raise ValueError(
          f'task.options.settings.{name}={shown(self.settings.get(name))} must be left out; '
          f'set task.options.{own}.'
        )
    try:
      import reasoning_gym
    except ImportError as error:
      raise ImportError(
        f'task.name=\'reasoning_gym\': {error}: pip install "agent_gspo[reasoning_gym]"'
      ) from error
    self._make = functools.partial(
      reasoning_gym.create_dataset, self.dataset, size=1, **dict(self.settings)
    )
    try:
      known = isinstance(self._entry('test', 0)['answer'], str)
    except Exception as error:  # whatever a generator raises for an option
      raise ValueError(f'task.options.dataset={self.dataset!r}: {error}') from error
    if not known:
      raise ValueError(
        f'task.options.dataset={self.dataset!r} has no answer to compare with; choose another.'
      )

  def _split(self, split: str) -> Sequence[Question]:
    return LazyQuestions(getattr(self, f'{split}_size'), functools.partial(self._question, split))

  def _question(self, split: str, index: int) -> Question:
    entry = self._entry(split, index)
    return Question(f'{self.dataset}/{split}/{index}', entry['question'], entry['answer'])

  @functools.lru_cache(maxsize=4096)  # noqa: B019  as long as the task itself
  def _entry(self, split: str, index: int) -> Mapping[str, Any]:
    """Draws entries until the text of one belongs to the split.

    Raises:
      ValueError: if none does, since the generator has few texts.
    """
    rng = draws.rng(self.seed, self.dataset, split, index)
    for _ in range(_TRIES):
      entry = self._make(seed=rng.randrange(2**31))[0]
      if draws.rng(entry['question']).randrange(10) in _BUCKETS[split]:
        return entry
    raise ValueError(f'no question of split {split!r} in {_TRIES} draws')

  def score(self, question: Question, answer_text: str) -> float:
    """Returns 1 if the library gives the extracted answer a full point, else 0.

    An answer is compared by its characters where the library gives a full point to nonsense, and
    as a number where it ignores signs; it is wrong where the library raises.
    """
    answer = self.canonical(answer_text)
    if answer is None or answer == self.canonical(question.answer):
      return float(answer is not None)
    if self.dataset == _SIGNLESS:
      return numeric.grade_number(answer, question.answer)
    full = functools.partial(self._full, question)
    number = '0.1' if numeric.canonical_number(question.answer) == '0' else '0'  # a wrong one
    return float(full(answer) and not any(map(full, ('nonsense', 'nan', number))))

  @functools.cached_property
  def _scorer(self) -> Any:
    return self._make(seed=0)

  def _full(self, question: Question, answer: str) -> bool:
    _, split, index = question.id.split('/')
    try:
      return float(self._scorer.score_answer(answer, self._entry(split, int(index)))) >= 1
    except Exception:  # the text is no answer
      return False

  def canonical(self, answer_text: str) -> str | None:
    r"""Returns the line in `\boxed{}` or after "the answer is", else the whole text.

    Answers of several lines are read as whole texts or in `<answer>` tags.
    """
    text = answer_marks.passage(answer_text)
    marked = answer_marks.marked(text, str.strip, str.strip)
    found = next((passage for passage, _ in marked if passage.strip()), text)
    return found.strip().removesuffix('.').rstrip() or None

  def demonstration(
    self,
    question: Question,
    agent: int,
    delivered: Sequence[str],
    rng: random.Random,
    **unused_probabilities: float,
  ) -> str:
    """Returns the gold answer."""
    return question.answer
