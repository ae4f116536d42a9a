"""Evaluates teams question by question, and reuses earlier answers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from agent_gspo.evaluation import evaluate, pruning, results
from agent_gspo.evaluation.options import EvaluationOptions
from agent_gspo.evaluation.variants import Variant
from agent_gspo.models.text.tokenizer import Tokenizer
from agent_gspo.tasks.base import Task
from agent_gspo.teams.policies import EndpointError, Policy
from agent_gspo.teams.rollout import rollout, without_hints
from agent_gspo.teams.team import Team
from agent_gspo.types import Question, Terms


class Answers:
  """In-memory store of records by team, question and sample, and of learned results."""

  def __init__(self):
    self._found: dict[tuple[str, str, int], Mapping[str, Any]] = {}
    self.learnt: dict[str, Any] = {}

  def get(self, variant: str, question_id: str, samples: int) -> list[Mapping[str, Any]]:
    """Returns the records of the first `samples` episodes of a question by a team."""
    found = (self._found.get((variant, question_id, sample)) for sample in range(samples))
    return [record for record in found if record is not None]

  def add(self, records: Sequence[Mapping[str, Any]]) -> None:
    """Stores records, each with its `variant`, `question_id` and `sample`."""
    for record in records:
      self._found[record['variant'], record['question_id'], record['sample']] = record

  def held(self) -> frozenset[tuple[str, str | None, int]]:
    """Returns `variant`, `asked` and `sample` of every record."""
    return frozenset((r['variant'], r.get('asked'), r['sample']) for r in self._found.values())

  def learn(self, name: str, what: Any) -> None:
    """Stores a learned result, plain data, under a name."""
    self.learnt[name] = what


@dataclasses.dataclass(frozen=True)
class Probe:
  """An intervention on a team's policy.

  Attributes:
    name: Name under which answers are stored.
    wrap: Function from the team's policy to the probed one.
    partners: Second question that the episodes of a question depend on, by question id.
  """

  name: str
  wrap: Callable[[Policy], Policy]
  partners: Mapping[str, Question] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Harness:
  """A team, its policy and the questions for it and its variants.

  Attributes:
    team: Team of agents.
    task: Task that grades the answers.
    tokenizer: Tokenizer of the policy.
    policy: Function (temperature, name of the noise stream) -> the team's policy.
    options: Questions and sampling.
    diverse_temperature: Temperature for samples that must differ, above 0.
    seed: Seed of random choices.
    step: Finished training steps of the policy, for records.
    prices: Prices of tokens in money, or None.
    terms: Price or budget stated with each question, or None.
    answers: Store of answers.
    note: Callback for lines of progress.
    alone: Concurrent episodes, if each is sampled separately and may fail separately, as through
      an endpoint; 0 samples those of a batch together.
  """

  team: Team
  task: Task
  tokenizer: Tokenizer
  policy: Callable[[float, str], Policy]
  options: EvaluationOptions
  diverse_temperature: float = 1.0
  seed: int = 0
  step: int = 0
  prices: results.Prices | None = None
  terms: Terms | None = None
  answers: Answers = dataclasses.field(default_factory=Answers)
  note: Callable[[str], None] = lambda text: None
  alone: int = 0

  @property
  def asked(self) -> list[Question]:
    """Returns the questions, with their terms."""
    found = evaluate.evaluated_questions(self.task, self.options, self.options.questions)
    return [self._on_terms(question) for question in found]

  def _on_terms(self, question: Question) -> Question:
    return dataclasses.replace(question, terms=self.terms)

  def run(
    self,
    label: str,
    variant: Variant,
    *,
    temperature: float | None = None,
    probe: Probe | None = None,
  ) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    """Evaluates a team on the questions without a stored answer.

    A batch with a missing answer is sampled as a whole, so answers are bit-identical to those of an
    uninterrupted evaluation. With `alone`, only missing questions are sampled. An answer to a
    question that was changed since (`asked`, a digest of its texts, differs) counts as missing.

    Returns:
      The figures over all answered questions, and a record of each of their episodes. `failed`
      maps the other questions to the reason.

    Raises:
      EndpointError: No question was answered, or see `evaluate.sample_batches`.
    """
    options, samples = self.options, self.options.samples
    temperature = options.temperature if temperature is None else temperature
    told = [dataclasses.asdict(self.terms)] if self.terms else []
    key = digest([describe(variant), temperature, probe.name if probe else '', *told])
    policy = variant.policy(self.policy(temperature, 'eval'))
    policy = probe.wrap(policy) if probe else policy
    asked, failed = self.asked, dict[str, str]()
    partners = probe.partners if probe else {}
    read = lambda q: [dataclasses.asdict(x) for x in (q, partners.get(q.id)) if x]
    contents = {q.id: digest(read(q)) for q in asked}

    def held(question: Question) -> list[Mapping[str, Any]]:
      found = self.answers.get(key, question.id, samples)
      return [record for record in found if record.get('asked') == contents[question.id]]

    missing = {q.id for q in asked if len(held(q)) < samples}
    answered = len(asked) - len(missing)

    def ask(part: Sequence[Question]) -> list[dict[str, Any]]:
      dealt, start = [variant.question(q) for q in part], time.monotonic()
      head = {'step': self.step, 'split': options.split, 'label': label}
      found, _ = evaluate.converse(
        variant.team, self.task, self.tokenizer, dealt, policy, samples, **head
      )
      more = {'seconds': (time.monotonic() - start) / len(found), 'variant': key}
      had = {(r['question_id'], r['sample']) for q in part for r in held(q)}
      new = [r for r in found if (r['question_id'], r['sample']) not in had]
      return [{**record, **more, 'asked': contents[record['question_id']]} for record in new]

    self.note(f'{label}: {answered} of {len(asked)} questions')
    batches = self._batches(asked, missing)
    for part, found in evaluate.sample_batches(batches, ask, self.alone, answered > 0):
      if isinstance(found, EndpointError):
        failed |= {q.id: str(found) for q in part}
      else:
        self.answers.add(found)
        answered += len(missing.intersection(q.id for q in part))
      self.note(f'{label}: {answered + len(failed)} of {len(asked)} questions')
    records = [record for q in asked if q.id not in failed for record in held(q)]
    if failed and not records:
      raise EndpointError(
        f'none of {len(asked)} questions was answered: {next(iter(failed.values()))}'
      )
    head = {'step': self.step, 'label': label, 'split': options.split, 'temperature': temperature}
    figures = results.figures(records, variant.team.names, self._prices(variant))
    figures |= results.votes(records, variant.team, self.task, {q.id: q for q in asked})
    if failed:  # failed questions count as wrong in this figure alone
      right = sum(record['task_score'] for record in records)
      figures |= {
        'task/accuracy_over_all': right / (len(asked) * samples),
        'failed': failed,
      }
    return {**head, 'variant': key, **figures}, records

  def _batches(self, asked: Sequence[Question], missing: set[str]) -> list[Sequence[Question]]:
    """Returns the whole batches with a missing question; with `alone` one per missing question."""
    if self.alone:
      return [[question] for question in asked if question.id in missing]
    size = max(1, self.options.batch_questions // self.options.samples)
    batches = evaluate.in_batches(asked, size)
    return [batch for batch in batches if missing.intersection(q.id for q in batch)]

  def _prices(self, variant: Variant) -> results.Prices | None:
    """Returns the prices of a variant; a member has the factor of its agent in the team."""
    if self.prices is None:
      return None
    known = self.prices.factors
    pairs = zip(variant.team.names, variant.agents, strict=True)
    factors = {name: known[own] for name, a in pairs if (own := self.team.names[a]) in known}
    return dataclasses.replace(self.prices, factors=factors)

  def partners(self) -> dict[str, Question]:
    """Pairs each question with its neighbor in the split: 0 and 1, 2 and 3, ...

    An odd last question gets the one before; the split has at least two questions.
    """
    split, options = self.task.questions(self.options.split), self.options
    asked = evaluate.question_indices(len(split), options.questions, spread=options.spread)
    other = lambda i: i ^ 1 if i ^ 1 < len(split) else i - 1
    return {split[i].id: self._on_terms(split[other(i)]) for i in asked}

  def play(self, graph: Callable[[np.ndarray], Variant]) -> pruning.Play:
    """Returns a function that scores graphs, each on one training question; batches equal ones."""
    policy, train = self.policy(self.options.temperature, 'masks'), self.task.questions('train')

    def scores(first: int, masks: np.ndarray) -> np.ndarray:
      found = np.zeros(len(masks))
      self.note(f'training questions {first} to {first + len(masks) - 1}')
      for mask in np.unique(masks, axis=0):
        members = np.flatnonzero((masks == mask).all(axis=1))
        variant = graph(mask)
        voice = without_hints(variant.policy(policy), variant.team, self.tokenizer)

        def sample(part: np.ndarray, variant=variant, voice=voice) -> list[float]:
          drawn = (self._on_terms(train[(first + int(m)) % len(train)]) for m in part)
          asked = [variant.question(question) for question in drawn]
          batch = rollout(variant.team, self.task, self.tokenizer, asked, 1, voice)
          return batch.task_scores.tolist()

        batches = np.split(members, len(members)) if self.alone else [members]
        for part, result in evaluate.sample_batches(batches, sample, self.alone, answered=True):
          if isinstance(result, EndpointError):  # a score of 0 has no gradient
            warnings.warn(f'a training question counts as wrong: {result}', stacklevel=2)
          else:
            found[part] = result
      return found

    return scores


def describe(variant: Variant) -> dict[str, Any]:
  """Returns a team as plain data: everything that its episodes depend on."""
  team, topology = variant.team, variant.team.topology
  roles = {
    name: {**dataclasses.asdict(role), 'examples': str(role.examples)}
    for name, role in zip(team.names, team.roles, strict=True)
  }
  return {
    'agents': list(variant.agents),
    'roles': roles,
    'edges': sorted(topology.edges),
    'previous_round': sorted(topology.previous_round),
    'rounds': topology.rounds,
    'last_round_only': sorted(topology.last_round_only),
    'decision': team.decision,
    'max_message_tokens': team.max_message_tokens,
    'max_episode_tokens': team.max_episode_tokens,
    'addressing': team.addressing,
    **({'blanked': True} if team.blanked else {}),
  }


def digest_of_weights(params) -> str:
  """Returns 16 hex digits of the SHA-256 of names, dtypes, shapes and values of all parameters."""
  found = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    values = np.asarray(leaf)
    found.update(f'{jax.tree_util.keystr(path)} {values.dtype} {values.shape}'.encode())
    found.update(np.ascontiguousarray(values).tobytes())
  return found.hexdigest()[:16]


def digest(data: Any) -> str:
  """Returns 16 hex digits of the SHA-256 of plain data."""
  return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
