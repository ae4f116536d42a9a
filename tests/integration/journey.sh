#!/usr/bin/env bash
# The first hour of a user with the wheel alone, from an empty folder: train, resume, report, ask,
# export, evaluate own questions. Two to three minutes on two cores.
#
#   tests/integration/journey.sh
#
# The new environment sees the packages of the current one, but not its agent_gspo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
unset PYTHONPATH
export AGENT_GSPO_CACHE=${AGENT_GSPO_CACHE:-$temp/cache}

echo '== sdist and wheel'
packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python -m venv --without-pip "$temp/venv" # pip and setuptools are the current ones
own=$("$temp/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$packages" >"$own/packages.pth" # its own .pth files, of editable installs, are not read
. "$temp/venv/bin/activate"
python -c 'import setuptools' 2>/dev/null || python -m pip install --quiet 'setuptools>=77'
# Of a copy: setuptools writes beside what it builds.
mkdir "$temp/source"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$temp/source"
(cd "$temp/source" && python -c "
from setuptools import build_meta
print(build_meta.build_sdist('$temp'))" >"$temp/sdist.log" 2>&1) || { cat "$temp/sdist.log"; exit 1; }
tar xf "$temp"/agent_gspo-*.tar.gz -C "$temp"
sdist=$(echo "$temp"/agent_gspo-*/)
for file in tests/integration/journey.sh tests/support/micro_run.py configs/tiny.py docs/usage.md; do
  [ -f "$sdist/$file" ] || { echo "the sdist has no $file"; exit 1; }
done
python -m pip wheel --quiet --no-deps --no-build-isolation -w "$temp" "$sdist"
python -m pip install --quiet --no-deps --ignore-installed "$temp"/agent_gspo-*.whl

mkdir "$temp/empty"
cd "$temp/empty"
python -c "
import agent_gspo
assert agent_gspo.__file__.startswith('$temp/venv'), agent_gspo.__file__"
for name in ask compare evaluate export report serve sweep train; do
  command -v "agent-gspo-$name" >/dev/null
done

echo '== settings'
agent-gspo-train --config=tiny --print_config | grep -A1 lambda_tok

echo '== train, and resume'
train() {
  agent-gspo-train --config=tiny --workdir=run --config.steps="$1" --config.sft.steps=60 \
    --config.rollout.questions=4 --config.rollout.group_size=4 --config.evaluation.questions=16 \
    --config.evaluation.seen_questions=0
}
train 1
train 2 | tee resumed.log
grep -q 'resumed from the checkpoint at step 1' resumed.log

echo '== report'
agent-gspo-report run
grep -q '<html' run/report.html

echo '== ask'
# Questions of the task: the team knows only the words of its task.
python - <<'PYTHON'
import json

from agent_gspo import make_task
from configs import tiny

task = make_task('relay', **tiny.get_config().task.options)
with open('asked.jsonl', 'w') as asked, open('own.jsonl', 'w') as own:
  for question in task.questions('test')[:4]:
    line = {'question': question.text, 'notes': question.notes}
    print(json.dumps(line), file=asked)
    print(json.dumps({**line, 'answer': question.answer, 'split': 'test'}), file=own)
PYTHON
agent-gspo-ask --workdir=run --file=asked.jsonl | tail -n 5

echo '== export'
agent-gspo-export --workdir=run --out=model
test -f model/config.json

echo '== evaluate own questions, by the exported policy'
cat >own.py <<'PYTHON'
from configs import tiny


def get_config():
  config = tiny.get_config().unlock()
  config.model.source = 'hf:model'
  config.task.name = 'questions'
  config.task.options = {'file': 'own.jsonl', 'grader': 'text'}
  config.evaluation.questions = 4
  return config.lock()
PYTHON
agent-gspo-evaluate --config=own.py --out=evaluation --baseline=
python -c "
import json
found = json.load(open('evaluation/result.json'))['evaluations'][0]
assert found['questions'] == 4, found
print('own questions:', found['task/accuracy'])"

echo '== ask the export'
agent-gspo-ask --workdir=model --file=asked.jsonl | tail -n 5

echo '== done'
