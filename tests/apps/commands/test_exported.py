"""Tests exported teams: they answer as their run does, in any folder."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import re
import types

import huggingface_hub
import huggingface_hub.utils as hf_utils
import jax
import micro_run
import numpy as np
import pytest
import safetensors.numpy
import tiny

from agent_gspo.apps.commands import command, exported, model_card, team_of_run
from agent_gspo.config import Config
from agent_gspo.config import check as config_lib
from agent_gspo.evaluation import asking
from agent_gspo.models import lora
from agent_gspo.models.io import hf, peft
from agent_gspo.tasks.registry import make_task
from agent_gspo.training import run_evaluations
from agent_gspo.training import setup as setup_lib
from agent_gspo.workdir import json_lines


@functools.cache
def moved() -> pathlib.Path:
  """Exports a micro run and moves the folder."""
  out, place = micro_run.folder() / 'written', micro_run.folder() / 'moved'
  done = micro_run.run(
    micro_run.command('export', f'--workdir={micro_run.finished()}', f'--out={out}')
  )
  assert done.returncode == 0, done.stderr
  assert 'the license of random:micro was not found' in done.stdout
  out.rename(place)
  return place


def team(workdir) -> team_of_run.TeamOfRun:
  """Returns the team that `ask --workdir` finds."""
  holder = lambda value: types.SimpleNamespace(value=value)
  checkpoint = command.CheckpointFlags(holder(str(workdir)), holder(None))
  return team_of_run.TeamOfRun(team_of_run.Flags(holder(None), checkpoint))


def _trained() -> dict:
  records = json_lines.iterate(micro_run.finished() / 'eval.jsonl')
  return next(record for record in records if record['label'] == 'trained')


def test_an_export_answers_as_its_run():
  talks, figures = [], []
  for place in (micro_run.finished(), moved()):
    asked = team(place)
    questions = [
      asking.asked(asked.team, n, q.text, q.notes)
      for n, q in enumerate(asked.parts.task.questions('test')[:3])
    ]
    batch, answers = asked.ask(questions, lambda message: None)
    talks.append(([message.text for message in batch.messages], answers))
    setup, params = asked.loaded
    scorer = setup_lib.make_scorer(setup)
    record, _ = run_evaluations.evaluate(
      setup, scorer, params, label='trained', step=asked.step, count=4
    )
    figures.append(record)
    del figures[-1]['seconds']
    assert asked.step == 10
    assert asked.about['example']['question'] == questions[0].text
  assert talks[0] == talks[1]
  assert any(talks[0][0])
  assert figures[0] == figures[1]
  assert {key: _trained()[key] for key in ('task/accuracy', 'tokens/written_per_question')} == {
    key: figures[1][key] for key in ('task/accuracy', 'tokens/written_per_question')
  }


def test_the_command_evaluates_an_export(tmp_path):
  """Uses `team.json` as a config, whose fields flags may set."""
  done = micro_run.run(
    micro_run.command(
      'evaluate',
      f'--config={moved() / exported.TEAM}',
      f'--workdir={moved()}',
      '--config.evaluation.batch_questions=2',
      '--baseline=',
      f'--out={tmp_path / "out"}',
    )
  )
  assert done.returncode == 0, done.stderr
  record = json.loads((tmp_path / 'out' / 'result.json').read_text())['evaluations'][0]
  assert record['label'] == 'step 10'
  assert record['tokens/written_per_question'] == _trained()['tokens/written_per_question']


def test_an_export_names_no_place_of_its_machine_and_what_was_measured():
  text = (moved() / exported.TEAM).read_text()
  assert str(micro_run.folder()) not in text
  found = json.loads(text)
  assert (found['model']['source'], found['exported']['step']) == ('hf:.', 10)
  assert set(found['team']['roles']) == {'informant', 'solver'}
  card = huggingface_hub.ModelCard.load(moved() / model_card.CARD)
  assert (card.data.license, card.data.library_name) == ('unknown', 'transformers')
  assert card.data.eval_results[0].metric_value == pytest.approx(_trained()['task/accuracy'])
  assert f'| accuracy, % | {100 * _trained()["task/accuracy"]:.1f} [' in card.content
  assert 'agent-gspo-ask --workdir=. ' in card.content


def test_an_export_has_one_step_and_one_model():
  place = moved()
  flags = command.CheckpointFlags(
    types.SimpleNamespace(value=str(place)), types.SimpleNamespace(value='3')
  )
  with pytest.raises(ValueError, match=r'--step=3: .* is exported, at step 10; leave it out'):
    flags.chosen()
  config = Config.from_dict(micro_run.get_config().to_dict())
  with pytest.raises(ValueError, match=r"model.source='random:micro', but 'hf:/.*begin with"):
    exported.find(str(place)).check_params(config)


def test_an_export_has_the_adapters_of_its_agents():
  """With 'mix' `policy.frozen` determines each agent's adapter."""
  values = dict(policy__sharing='mix', model__lora_rank=2, model__source='hf:base')
  saved, other = (
    config_lib.check(micro_run.changed(**values, policy__frozen=frozen), training=False).config
    for frozen in (('solver',), ('informant1',))
  )
  read = json.loads(json.dumps(saved.to_dict()))
  team = exported.Exported(pathlib.Path('team'), 3, read, ['informant1', 'informant2'])
  team.check_params(saved)
  with pytest.raises(ValueError, match=r"policy\.frozen=\('informant1',\), but \('solver',\)"):
    team.check_params(other)


def test_a_cut_adapter_is_named(tmp_path):
  params = tiny.params(tiny.CONFIG.replace(lora_rank=2, lora_alpha=4.0))
  hf.export_hf(tiny.CONFIG, tiny.params(), tmp_path)
  peft.export_peft(tiny.CONFIG.replace(lora_rank=2), params, tmp_path / 'all', 'base')
  file = tmp_path / 'all' / 'adapter_model.safetensors'
  content = micro_run.changed(model__source=f'hf:{tmp_path}')
  config, team = Config.from_dict(content), exported.Exported(tmp_path, 3, content, ['all'])
  assert jax.tree.all(jax.tree.map(np.array_equal, team.restore_params(config, params), params))
  tensors = safetensors.numpy.load_file(file)
  del tensors[next(name for name in tensors if 'layers.1.mlp.up_proj.lora_B' in name)]
  safetensors.numpy.save_file(tensors, file)
  with pytest.raises(ValueError, match=r'/all: the adapter lacks layers_1/mlp/up/lora_b \(1 of'):
    team.restore_params(config, params)


def test_a_team_of_the_hub(monkeypatch, tmp_path):
  asked = []

  def download(name, revision, allow_patterns, ignore_patterns):
    asked.append((name, revision))
    there = moved() if name == 'owner/team' else tmp_path
    listed = [str(file.relative_to(there)) for file in there.rglob('*') if file.is_file()]
    listed += ['consolidated.safetensors', 'original/params.json']
    kept = hf_utils.filter_repo_objects(
      listed, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
    )
    assert {*listed} - {*kept} <= {
      *('consolidated.safetensors', 'original/params.json', 'README.md', '.gitattributes')
    }
    return str(there)

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', download)
  assert exported.find('hf:owner/team@main').step == 10
  with pytest.raises(FileNotFoundError, match=r'hf:owner/model holds no team.json: it is a model'):
    exported.find('hf:owner/model')
  assert asked == [('owner/team', 'main'), ('owner/model', None)]


def test_an_export_is_uploaded_to_a_private_repository(monkeypatch, tmp_path):
  calls = []
  monkeypatch.setattr(
    huggingface_hub, 'create_repo', lambda name, **options: calls.append((name, options))
  )
  monkeypatch.setattr(
    huggingface_hub, 'upload_folder', lambda **options: calls.append(options) or 'https://hub/x'
  )
  private = [True, False, True]
  info = lambda name: types.SimpleNamespace(private=private.pop(0))
  monkeypatch.setattr(huggingface_hub, 'model_info', info)
  assert exported.push(tmp_path, 'owner/team') == 'https://hub/x'
  assert calls == [
    ('owner/team', {'private': True, 'exist_ok': True}),
    {'repo_id': 'owner/team', 'folder_path': tmp_path},
  ]
  with pytest.raises(ValueError, match='--push_to_hub=owner/team: that repository is public'):
    exported.push(tmp_path, 'owner/team')
  assert len(calls) == 3  # nothing was uploaded

  def refuse(**options):
    raise OSError('no token')

  monkeypatch.setattr(huggingface_hub, 'upload_folder', refuse)
  with pytest.raises(ConnectionError, match=r'--push_to_hub=owner/team: .*no token.* is written'):
    exported.push(tmp_path, 'owner/team')


def test_own_questions_stay_at_home(tmp_path):
  """The team can be asked without the file that it was trained on."""
  file = tmp_path / 'own.jsonl'
  rows = [{'prompt': f'q{n} ?', 'gold': 'yes', 'notes': ['a', 'b']} for n in range(60)]
  file.write_text('\n'.join(map(json.dumps, rows)))
  config = micro_run.changed(task__name='questions')
  options = {'question': 'prompt', 'answer': 'gold', 'grader': 'text'}
  config['task']['options'] = {'file': str(file), **options}
  parts = config_lib.check(config, training=False)
  (tmp_path / 'out').mkdir()
  exported.write_team(tmp_path / 'out', parts, 'hf:.', 3, [])
  question = parts.task.questions('test')[0]
  file.unlink()
  found = exported.find(str(tmp_path / 'out'))
  task = found.asked_config(found.config)['task']
  assert {key: task['options'][key] for key in options} == options  # as its users' files are
  (asked,) = make_task('questions', **task['options']).questions('test')
  assert (asked.text, asked.notes, asked.answer) == (question.text, ('a', 'b'), 'yes')


@pytest.mark.parametrize('agents', [('informant1', 'solver'), ('solver',), ()])
def test_the_code_of_a_card_loads_the_policy_of_each_agent(tmp_path, monkeypatch, agents):
  torch, transformers, library = map(pytest.importorskip, ('torch', 'transformers', 'peft'))
  monkeypatch.chdir(tmp_path)
  hf.export_hf(tiny.CONFIG, tiny.params(), tmp_path / 'base')
  config, rng = tiny.CONFIG.replace(lora_rank=2, lora_alpha=4.0), np.random.default_rng(0)
  noise = lambda path, x: rng.normal(0, 0.3, x.shape) if lora.is_adapter(path[-1].key) else x
  folders = [f'adapters/{name}' for name in agents]
  for folder in folders:
    adapted = jax.tree_util.tree_map_with_path(noise, tiny.params(config))
    peft.export_peft(config, adapted, folder, 'base')
  text = model_card.card(
    config_lib.check(micro_run.changed(), training=False),
    'team',
    3,
    license='mit',
    figures={},
    adapters=folders,
    base='base',
    workdir='.',
  )
  loaded: dict = {}
  exec(re.search(r'```python\n(.*?)```', text, re.S)[1], loaded)
  logits = lambda model: model(torch.arange(8)[None]).logits.detach().numpy()
  found = {}
  for name, folder in zip(agents, folders, strict=True):
    alone = transformers.AutoModelForCausalLM.from_pretrained('base')
    found[name] = logits(library.PeftModel.from_pretrained(alone, folder))
    loaded['model'].set_adapter(name)
    np.testing.assert_array_equal(logits(loaded['model']), found[name])
  if len(agents) == 2:
    assert np.abs(found['informant1'] - found['solver']).max() > 0.1


def test_a_card_names_no_folder_of_its_machine(tmp_path):
  parts = config_lib.check(micro_run.changed(), training=False)
  place = tmp_path / 'team'
  place.mkdir()
  fields = dict(license='mit', figures={}, adapters=[], base='.', workdir='.')
  for source, shown in (
    (f'hf:{place}', 'hf:team'),
    (f'gguf:{place}/q.gguf', 'gguf:q.gguf'),
    ('hf:owner/team', 'hf:owner/team'),
  ):
    model = dataclasses.replace(parts.config.model, source=source)
    config = dataclasses.replace(parts.config, model=model)
    text = model_card.card(dataclasses.replace(parts, config=config), 't', 3, **fields)
    assert f'3 steps from `{shown}` on the task' in text
    assert str(tmp_path) not in text
    assert 'This step has no evaluation here.' in text  # nor in an export of an export


@pytest.mark.parametrize('label', ['untrained', 'during', 'trained'])
def test_the_figures_of_a_card_are_of_its_step(tmp_path, label):
  lines = [{'step': 0, 'label': label, 'task/accuracy': 0.5}, {'step': 0, 'label': 'debate'}]
  (tmp_path / 'eval.jsonl').write_text('\n'.join(map(json.dumps, lines)) + '\n')
  assert model_card.last_evaluation(str(tmp_path), 0) == lines[0]
  assert model_card.last_evaluation(str(tmp_path), 1) == {}


def test_the_license_of_the_base(tmp_path, monkeypatch):
  (tmp_path / 'README.md').write_text('---\nlicense: mit\n---\n# A model\n')
  assert model_card.license_of(f'hf:{tmp_path}') == 'mit'
  opened = types.SimpleNamespace(metadata={'general.license': 'x'})
  monkeypatch.setattr(model_card.gguf, 'open_gguf', lambda file: opened)
  assert model_card.license_of('gguf:model.gguf') == 'x'
  assert model_card.license_of('random:micro') == 'unknown'
