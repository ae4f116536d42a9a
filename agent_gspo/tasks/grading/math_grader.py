r"""Extracts a mathematical expression from free text, and compares it with a gold one.

The first rule that finds an expression counts: after `####` (for which lines, see
`answer_marks`); the last `\boxed{}`; after the last "the answer is" (its first formula, else
its words); the last formula of the text (`$..$`, `\(..\)`, `\[..\]`); a text that is no more
than an expression; the last number of the text.

Two expressions are equal if they are the same up to typesetting (sizes, spaces, units,
degree, percent and dollar signs, "x =" in front); if both are numbers, by
`numeric.grade_number`; if either is words, by their letters; else if math-verify
(github.com/huggingface/Math-Verify), which parses LaTeX to sympy, finds them equal. It
runs in another process, since sympy may not terminate on sampled text.

Numbers without decimals must be exactly equal: 10^{-20} is not 10^{-21}. Values belong to names:
"x=1, y=2" is not "x=2, y=1", and (1,2) equals the first of them. An inequality equals the interval
or union with the same numbers; so does (3,5), which may be a point, if the other is 3 < x < 5.
A degree sign is dropped after a bare number, but \sin 30^\circ is 1/2, and 30^\circ is
\pi/6 if the other has \pi or an inverse function. Repeating decimals are fractions.

As in MATH itself, units are not checked and 50 % is 50. Intervals and tuples are compared with
brackets and order, sets with brackets only. The base of a number counts if both have one:
52_8 is not 52_9, but equals 52. "1 4/5" is a mixed number. 9 a.m. is not 9 p.m., but 9:00 am.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping

from agent_gspo.tasks.grading import answer_marks, numeric, statements

_MAX_TEXT = 20_000
_MAX_EXPRESSION = 500
_FORMULA = re.compile(
  r'\$\$(.{1,1000}?)\$\$|(?<!\\)\$([^$\n]{1,1000}?)(?<!\\)\$'
  # Possessive, and not past a second opening, so that unclosed ones are cheap.
  r'|\\\(((?:[^\\]|\\[^()]){1,1000}+)\\\)|\\\[((?:[^\\]|\\[^\[\]]){1,1000}+)\\\]',
  re.DOTALL,
)
# Colons, line breaks and the end of bold type between "the answer is" and the answer.
_LEAD = re.compile(r'\A(?:[\s:=]|[*_`]++(?=\s|$))*')
_ITEM = re.compile(_FORMULA.pattern + r'|(?<![\w.])\\?\$?[0-9][0-9.,/]*(?<![.,])', re.DOTALL)
_OTHER_FORMULA = re.compile(rf',?\s*or\s+(?:{_FORMULA.pattern})', re.DOTALL)
_REASON = re.compile(r',?\s+(?:because|since|so|as|which|when|where|if)\b.*', re.DOTALL)
_PROSE = re.compile(r'(?<![\\{A-Za-z])[A-Za-z]{3,}')
# A heading: begins with a word, or has nothing of a formula.
_HEADING = re.compile(r'[^\\\w]*(?:[A-Za-z]{3}|[A-Z][a-z]\b)|[^\d\\$=+^/<>-]*$|\W*$')

_UNICODE = str.maketrans(
  {'≤': r'\le ', '≥': r'\ge ', '≠': r'\ne ', '∞': r'\infty ', '∪': r'\cup ', '∈': r'\in '}
  | {'²': '^2', '³': '^3', '·': r'\cdot ', '½': r'\frac{1}{2}'}
)
_FUNCTION = r'(?:sin|cos|tan|cot|csc)'
_DEGREE = re.compile(r'(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree(?![a-z])|[°º])')
_UNDER_FUNCTION = re.compile(rf'\\(?:{_FUNCTION}|sec)h?(?![a-z])')
_RADIANS = re.compile(rf'\\pi(?![a-z])|\\arc{_FUNCTION}|\\{_FUNCTION}\s*\^\s*\{{\s*-\s*1\s*\}}')
_OF_DEGREES = re.compile(
  r'((?<![0-9.])(?:[0-9]++(?:\.[0-9]++)?+|\.[0-9]++)|\\frac\{[^{}]*\}\{[^{}]*\}|\\?[A-Za-z]++'
  r'|\([^()]*\)|\{[^{}]*\})' + r'\s*' + _DEGREE.pattern
)
_SIGNS = tuple(
  (re.compile(pattern), replacement)
  for pattern, replacement in (
    (r'\\(?:left|right|displaystyle|limits|big|Big|bigg|Bigg)(?![a-zA-Z])', ''),
    (r'(?<=[0-9])(?:,\\!\s*|\{,\})(?=[0-9]{3}(?![0-9]))', ''),
    (r'√\s*(?:\(([^()]*)\)|([0-9]+|[A-Za-z]))', r'\\sqrt{\1\2}'),
    (r'(?<!\\)\\[!,;: ]|~|\\q?quad(?![a-zA-Z])', ' '),
    (r'\*\*|\\?\$|(?<!\\)\\[()\[\]]', ''),
    (r'\\[dt]frac(?![a-zA-Z])', r'\\frac'),
    (r'\\?%', ''),
    (r'[\u2212\u2010-\u2013]', '-'),
    (r'<=|=<', r'\\le '),
    (r'>=', r'\\ge '),
    (r'(?<=[A-Za-z])\s*!=|\\not\s*=', r'\\ne '),
    (r'(?<![A-Za-z\\])(?:oo|inf|infinity)(?![A-Za-z])', r'\\infty '),
    (r'(?<=[)\]])\s*U(?=\s*[(\[])', r'\\cup '),
    (r'(?<=[0-9A-Za-z)}])\s*(?:\\text\s*\{\s*degrees?\s*\}|(?<![A-Za-z])degrees?\b)', '°'),
    (rf'(?<![A-Za-z\\{{])((?:arc)?{_FUNCTION})(?=\s*[(0-9\\])', r'\\\1 '),
    (r'\s+', ' '),
  )
)
# An argument without braces.
_TOKEN = r'([0-9A-Za-z]|\\(?:pi|theta|alpha|beta)(?![A-Za-z]))'
_UNITS = '(?:[ckm]m|[km]g|m?l|ft|in|lbs?|mi|mph|hrs?|sec|min|oz|[ap]m)'
_MORE_UNITS = r'(?:[\s/]+[a-z]+){0,2}(?:\s*\^\s*\{?[23]\}?)?\s*'
_LOOKS = tuple(
  (re.compile(pattern), replacement)
  for pattern, replacement in (
    (r'\\(?:text|mbox|mathrm|textbf|mathbf|textit)\s*\{([^{}]*)\}', r' \\text{\1}'),
    # A unit after a number or formula; words that are the answer have none before them.
    (r'(?<=[0-9A-Za-z})])\s*\\text\{\s*[^{}]*\}(?:\s*\^\s*\{?[0-9]\}?)?\s*\.?\s*$', ''),
    # Two or three letters right behind a number, or behind a formula, may be variables.
    (
      rf'(?<=[0-9])(?:\s+(?!pi\b|or\b|and\b)[a-z]{{2,}}|(?:[a-z]{{4,}}|{_UNITS})\b)'
      rf'{_MORE_UNITS}$',
      '',
    ),
    (rf'(?:(?<=[}})])|(?<=\\pi))\s+[a-z]{{4,}}{_MORE_UNITS}$', ''),
    (rf'\\frac(?![A-Za-z])\s*{_TOKEN}\s*(?=[\\{{0-9A-Za-z])', r'\\frac{\1} '),
    (rf'\\frac\s*(\{{[^{{}}]*\}})\s*{_TOKEN}', r'\\frac\1{\2}'),
    (rf'\\sqrt(?![A-Za-z])\s*(\[[^\[\]]*\])?\s*{_TOKEN}', r'\\sqrt\1{\2}'),
    (r'(?<![\w./^])([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)(?![\w/])', r'\1\\frac{\2}{\3}'),
    (r'[.,;:]\s*$', ''),
  )
)
_NAME = re.compile(r'^\\?[A-Za-z](?:\([a-z]\))?=(?!=)')
_LETTER = re.compile(r'(?<![\\A-Za-z])[A-Za-z]')
_THOUSANDS = re.compile(r'-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?(?:\\pi|\\sqrt\{\w+\}|[a-z])*')
_NUMBER = re.compile(
  r'-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+|[0-9]+/[0-9]+|\\frac\{-?[0-9]+\}\{[0-9]+\})'
)
_BASED = re.compile(r'(-?)\(?0*([0-9A-Z]+(?:\.[0-9A-Z]+)?)\)?_\{?\(?([0-9]{1,2})\)?\}?')
# The last kind is a name and a number, such as June 20.
_WORDS = re.compile(r'\(?(?:\\text\{)?\(?([A-Za-z][A-Za-z,]*|[A-Z][a-z]{2,}[0-9]{1,4})\)?\}?\)?')
_CLOCK = re.compile(
  r'(?:\\text\{)?([0-9]{1,2})(?::([0-9]{2}))?(?:\\text\{)?([ap])\.?m\.?\}?\.?', re.IGNORECASE
)
_TUPLE = re.compile(r'[(\[].*,.*[)\]]')
_SET = re.compile(r'\\\{(?!.*(?:[<>:|]|\\mid|\\[lg]e)).*\\\}')


def extract_math(text: str) -> str | None:
  """Returns the expression that `text` gives as its answer, as literal LaTeX, or None."""
  text = answer_marks.passage(text)
  begun = lambda line: _is_expression(line) and not answer_marks.NUMBERED.match(line)
  bare = lambda line: begun(line) and not _HEADING.match(line)
  for passage, is_sentence in answer_marks.marked(text, bare, begun, _sentences):
    found = _stated(_conclusion(passage)) if is_sentence else passage.strip()
    if found:
      return found
  formulas = answer_marks.last(_FORMULA, text)
  if formulas:
    return _content(formulas[0])
  text = text.strip(' \t\n#')
  if text and len(text) <= _MAX_EXPRESSION and _is_expression(text):
    return text
  return numeric.canonical_number(text)


def grade_math(text: str, gold: str) -> float:
  """Returns 1.0 if `text` answers with the gold expression (LaTeX), else 0.0.

  Raises:
    ValueError: if `gold` is empty.
  """
  if not gold.strip():
    raise ValueError('the gold answer is empty')
  answer = extract_math(text)
  return float(answer is not None and same_expression(answer, gold))


def same_expression(answer: str, gold: str) -> bool:
  """Returns whether two LaTeX expressions are equal (rules: see the module)."""
  times = _clock(answer), _clock(gold)
  if all(times):
    return times[0] == times[1]
  if (r'\pm' in answer) != (r'\pm' in gold):
    answer, gold = _both_signs(answer), _both_signs(gold)
  seen = _seen(answer), _seen(gold)
  bare = _bare(seen[0]), _bare(seen[1])
  if seen[0] == seen[1]:
    return True
  if not bare[0] or max(map(len, bare)) > _MAX_EXPRESSION:
    return bare[0] == bare[1]
  named = statements.same_values(*seen, same_expression)
  if named is not None:
    return named
  full = statements.without_spaces(seen[0]), statements.without_spaces(seen[1])
  for equation, solved in (full, full[::-1]):
    name = _unsolved(equation, solved)
    if name:
      wanted = equation.endswith('=' + name) or _LETTER.search(_bare(solved))
      return bool(wanted) and _same(*full)
  if _same(*bare, sets=seen if any(map(statements.RELATION.search, seen)) else None):
    return True
  signs = [bool(_DEGREE.search(text[:_MAX_TEXT])) for text in (answer, gold)]
  if signs[0] == signs[1] or not _RADIANS.search((answer, gold)[signs[0]]):
    return False
  angles = _bare(_seen(answer, radians=True)), _bare(_seen(gold, radians=True))
  return angles != bare and _same(*angles)


def _same(answer: str, gold: str, sets: tuple[str, str] | None = None) -> bool:
  """Returns whether two expressions without spaces are equal; `sets`: both to compare as sets."""
  if answer == gold:
    return True
  if _NUMBER.fullmatch(answer) and _NUMBER.fullmatch(gold):
    return numeric.grade_number(answer, gold) == 1.0
  based = _BASED.fullmatch(answer), _BASED.fullmatch(gold)
  if based[0] and based[1]:
    return based[0].groups() == based[1].groups()
  words = _words(answer), _words(gold)
  if (words[1] and 'text' in gold) or (all(words) and 'text' in answer):
    return words[0] == words[1]
  if any(_SET.fullmatch(a) and _TUPLE.fullmatch(b) for a, b in ((answer, gold), (gold, answer))):
    return False
  # math-verify compares lists as sets, and 1:2:3 as one quotient.
  lists = [statements.split(text, ',') for text in (answer, gold)]
  if len(lists[0]) == len(lists[1]) > min(len({*items}) for items in lists) and not sets:
    have, want = ([{'': item} for item in items] for items in lists)
    return statements.same_records(have, want, same_expression)
  ratios = [statements.split(text, ':') for text in (answer, gold)]
  if len(ratios[0]) == len(ratios[1]) > 2:
    return all(map(same_expression, *ratios))
  request: dict[str, object] = {'gold': gold, 'answer': answer}
  if sets:
    request['conditions'] = [statements.conditions(text) for text in reversed(sets)]
  return ask(request) is True


def canonical_math(text: str) -> str | None:
  """Returns the expression in an answer, normalized for votes, or None."""
  answer = extract_math(text)
  if answer is None:
    return None
  time = _clock(answer)
  if time:
    return '{}:{:02} {}.m.'.format(*time)
  answer = _bare(_seen(answer))
  if _NUMBER.fullmatch(answer):
    return numeric.canonical_number(answer) or answer
  if len(answer) > _MAX_EXPRESSION:
    return None
  based = _BASED.fullmatch(answer)
  if based:
    return '{}{}_{}'.format(*based.groups())
  words = _words(answer)
  if len(words) > 1 or 'text' in answer:
    return words or answer
  return str(ask({'expression': answer}) or answer) or None


def _seen(latex: str, radians: bool = False) -> str:
  """Removes typesetting from an expression, but not spaces and "x =".

  Degrees are converted to radians under a function, and everywhere if `radians`; else their sign
  is dropped.
  """
  latex = latex[:_MAX_TEXT].translate(_UNICODE)
  latex = numeric.rewrite_recurring(
    latex, lambda value: rf'\frac{{{value.numerator}}}{{{value.denominator}}}'
  )
  for pattern, replacement in _SIGNS:
    latex = pattern.sub(replacement, latex)
  if radians or _UNDER_FUNCTION.search(latex):
    latex = _OF_DEGREES.sub(r'(\1\\cdot\\frac{\\pi}{180})', latex)
  latex = _DEGREE.sub('', latex)
  for pattern, replacement in _LOOKS:
    latex = pattern.sub(replacement, latex)
  return latex.strip()


def _bare(latex: str) -> str:
  """Returns the expression without spaces and without "x =" in front."""
  latex = _NAME.sub('', statements.without_spaces(latex))
  return latex.replace(',', '') if _THOUSANDS.fullmatch(latex) else latex


def _clock(latex: str) -> tuple[int, int, str] | None:
  """Returns hour, minute and a or p of a time such as 4:30 p.m.; None for all else."""
  match = _CLOCK.fullmatch(re.sub(r'\\[!,;: ]|[\s~$]', '', latex))
  return (int(match[1]), int(match[2] or 0), match[3].lower()) if match else None


def _both_signs(latex: str) -> str:
  r"""Writes an expression with a \pm inside of braces as its two values."""
  if latex.count(r'\pm') != 1 or not re.search(r'\{[^{}]*\\pm', latex):
    return latex
  return ','.join(latex.strip(' $.').replace(r'\pm', sign) for sign in '+-')


def _unsolved(equation: str, solved: str) -> str:
  r"""Returns x if one expression is like x^2 = 9 or 9 = x, and the other like x = 9; else ''."""
  name = _NAME.match(solved)
  if not name or equation.count('=') != 1 or _NAME.match(equation):
    return ''
  return name[0][:-1] if name[0][:-1] in re.sub(r'\\[A-Za-z]+', '', equation) else ''


def _sentences(text: str) -> Iterator[str]:
  """Yields the text after "the answer is" in its sentence, which a formula may continue."""
  for passage in answer_marks.answer_sentences(text, end=re.compile(r'\Z')):
    passage = _LEAD.sub('', passage)
    stop, formula = answer_marks.SENTENCE_END.search(passage), _FORMULA.search(passage)
    # A single dollar may be a currency.
    if stop and formula and formula.start() < stop.start() and not formula[2]:
      stop = answer_marks.SENTENCE_END.search(passage, formula.end())
    sentence = passage[: stop.start()] if stop else passage
    if re.search(r'[^\W_]|[^\x00-\x7f]', sentence):
      yield sentence


def _stated(sentence: str) -> str:
  """Returns the first formula of a sentence, or all for "a or b"; else its words up to a reason."""
  formula = _FORMULA.search(sentence)
  if formula and _OTHER_FORMULA.match(sentence, formula.end()):
    return sentence.strip()
  return _content(formula) if formula else _REASON.sub('', sentence).strip()


def _conclusion(sentence: str) -> str:
  """Returns a sentence's conclusion from a list, from its formula or number on; else all of it."""
  items = [match.span() for match in _ITEM.finditer(sentence)]
  behind = answer_marks.conclusion(sentence, items)
  if behind is None:
    return sentence
  item = _ITEM.search(behind)
  return behind[item.start() :] if item else behind


def _content(match: re.Match[str]) -> str:
  return next(group for group in match.groups() if group).strip()


def _is_expression(text: str) -> bool:
  r"""Returns whether a text is only an expression: at most one word outside \text{}."""
  return len(_PROSE.findall(re.sub(r'\\(?:text|mbox)\s*\{[^{}]*\}', '', text))) <= 1


def _words(expression: str) -> str:
  """Returns the letters of an answer that may be words, such as Evelyn, in lower case; else ''."""
  match = _WORDS.fullmatch(expression)
  return match[1].casefold() if match else ''


# The process of `math_worker`: started upon use, replaced when it ends

_WORKER = pathlib.Path(__file__).with_name('math_worker.py')

_lock = threading.Lock()
_process: subprocess.Popen[str] | None = None
_owner = 0  # A fork must not write into its parent's pipe.


def ask(request: Mapping[str, object]) -> bool | str | None:
  """Returns the worker's reply to a request; None also if it ran out of time or memory.

  Thread-safe by a lock, and safe in forked processes, which start their own worker.

  Raises:
    RuntimeError: if the worker cannot be started.
  """
  with _lock:
    try:
      line = _reply(_running(), json.dumps(request))
    except BaseException:  # upon an interrupt, the pending reply must not answer the next request
      _stop()
      raise
    if line:
      return json.loads(line)
    _stop()
    return None


def _reply(process: subprocess.Popen[str], line: str) -> str:
  """Sends a line and returns the worker's reply, '' if it has ended."""
  assert process.stdin is not None
  assert process.stdout is not None
  with contextlib.suppress(BrokenPipeError):
    process.stdin.write(line + '\n')
    process.stdin.flush()
    return process.stdout.readline()
  return ''


def _running() -> subprocess.Popen[str]:
  global _process, _owner
  if _process is None or _owner != os.getpid() or _process.poll() is not None:
    _stop()
    _process = subprocess.Popen(
      # -P: keeps the worker's folder off its import path.
      [sys.executable, '-P', str(_WORKER)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      encoding='utf-8',
      start_new_session=True,  # Ctrl-C is for its parent; it ends with its input
    )
    _owner = os.getpid()
    if not _reply(_process, '{"expression": "1"}'):
      raise RuntimeError(
        'the grader of mathematical expressions did not start (see its error above); '
        "is math-verify installed? It comes with the extra `data`: pip install '.[data]'"
      )
  return _process


@atexit.register
def _stop() -> None:
  """Ends this process's worker; the next request starts another."""
  global _process
  if _process is not None and _owner == os.getpid():
    process, _process = _process, None
    process.kill()
    process.communicate()  # closes both pipes and waits
