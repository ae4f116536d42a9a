"""Tests a run with prices in prompts, and evaluations of it at chosen prices."""

from __future__ import annotations

import json
import pathlib
import re
import shutil

import micro_run
import pytest

from agent_gspo.workdir import records

pytestmark = pytest.mark.slow

_WORDS = "('nothing', 'little', 'much')"
_TOLD = [
  '--config.budget.mode=conditioned',
  '--config.budget.lambda_max=0.02',
  f'--config.budget.told_words={_WORDS}',
  '--config.team.roles.informant.opening={price} : {question} note : {note}',
]
_RUN = [*_TOLD, '--config.steps=2', '--config.evaluation.told=(0.0,0.02)']


@pytest.fixture(scope='module')
def workdir() -> pathlib.Path:
  def make(folder: pathlib.Path) -> None:
    done = micro_run.run(micro_run.train_command(folder, *_RUN))
    assert done.returncode == 0, done.stderr

  return micro_run.shared('told', make)


def test_the_trained_team_is_evaluated_at_each_price(workdir):
  found = {record['label']: record for record in records.evaluations(workdir)}
  assert {'trained', 'trained, price 0', 'trained, price 0.02'} <= found.keys()
  values = [records.told_value(record) for record in found.values()]
  assert [value for value in values if value is not None] == [0.0, 0.02]
  # What it reads is the same at prices that are told in the same words.
  read = 'tokens/read_per_question'
  assert found['trained, price 0.02'][read] == found['trained'][read]
  prices = [record['budget/lambda_tok'] for record in records.load_run(workdir).metrics]
  assert len(set(prices)) == 2
  assert all(0 <= price <= 0.02 for price in prices)


def test_a_run_that_goes_on_shows_only_the_team_that_it_ends_with(workdir, tmp_path):
  again = tmp_path / 'run'
  shutil.copytree(workdir, again)
  more = ['--config.steps=3', '--config.evaluation.seen_questions=0']
  done = micro_run.run(micro_run.train_command(again, *_RUN, *more))
  assert done.returncode == 0, done.stderr
  found = [(r['label'], r['step']) for r in records.evaluations(again)]
  assert {(records.SEEN, 2), ('trained, price 0', 2), ('trained, price 0', 3)} <= set(found)
  assert len(re.findall(r'trained, price 0 ', done.stdout)) == 1
  assert len(re.findall(r'trained, price 0\.02 ', done.stdout)) == 1
  assert 'training split' not in done.stdout


@pytest.mark.parametrize('team', ['step 2', 'untrained'])
def test_an_evaluation_has_a_row_a_price_named_after_the_team(workdir, tmp_path, team):
  out = tmp_path / 'out'
  arguments = [f'--config={micro_run.CONFIG}', *_RUN, f'--out={out}', '--baseline=']
  arguments += [f'--workdir={workdir}'] if team == 'step 2' else []
  shown = micro_run.run(micro_run.command('evaluate', *arguments)).stdout
  assert re.search(rf'{team}, price 0 .*\n.*{team}, price 0\.02', shown)
  result = json.loads((out / 'result.json').read_text())
  labels = [evaluation['label'] for evaluation in result['evaluations']]
  assert labels[:3] == [team, f'{team}, price 0', f'{team}, price 0.02']
  values = [records.told_value(evaluation) for evaluation in result['evaluations']]
  assert values[:3] == [None, 0.0, 0.02]


def test_only_a_team_with_prices_can_be_asked_at_a_price(workdir):
  question = [f'--workdir={workdir}', '--question=How many ?', '--json']
  told = json.loads(micro_run.run(micro_run.command('ask', *question, '--price=0')).stdout)
  assert [message['agent'] for message in told['messages']][-1] == 'solver'
  refused = micro_run.run(micro_run.command('ask', *question, '--budget=20'))
  assert refused.returncode == 2
  assert 'budget=20: this team is told no budget' in refused.stderr
  other = [f'--workdir={micro_run.finished()}', '--question=How many ?', '--price=0.1']
  refused = micro_run.run(micro_run.command('ask', *other))
  assert 'price=0.1: this team is told no price' in refused.stderr
