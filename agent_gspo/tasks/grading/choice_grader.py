r"""Extracts the letter of an option from free text.

The first rule that finds a letter counts:

1. the one after `####` (for which lines, see `answer_marks`), in the last `\boxed{}`;
2. in the last sentence that follows "the answer is", "answer:", "the correct option is"
   or "I choose" and names an option: the one it starts with, else the only one in it;
3. the last "B is correct", "option B is the right one", or conclusion: a letter between
   "so" (thus, hence ...) and the end of its sentence, as in "so B.", "so it is (B)";
4. the one that is alone on the last line, else on the first;
5. the one that the text starts with, as in "B) 150", "(B)", "B. ...", "B because",
   unless the text lists other options that way;
6. the only one that the text names: "(B)", "option B", "B".

Text that names two options is not an answer: "A or B", "B, C", "(A) (C)", unless it concludes
with one: "A, B and C are all true, so D". Nor is an option that the task does not have. "A" before
a word is an article, "not B" and "the wrong answer is B" name nothing, and lower case counts
only if it is unambiguous: "(b)", "answer: b", "the answer is b.", but not "the answer is a
triangle".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent_gspo.tasks.grading import answer_marks

_MAX_LETTER = 'H'  # "the answer is F" names an option, "the answer is X" a variable
_LOOKS = re.compile(r'\*+|__|`|\\(?:text|textbf|mathrm|mathbf|rm|bf)\b|[${}"“”]')
_QUOTED = re.compile(r"(?<!\w)['‘’](\(?[A-Za-z][).,]{0,2})['’](?!\w)")  # not "it's"
_MARK = re.compile(
  rf"""
  (?=[acrbfmi])\b(?:  # first letters, which are found faster
  (?: {answer_marks.ANSWER}
    | (?:correct|right|best|final|my)\s+(?:option|choice|letter|pick)
  )
  \s*
  (?:\b(?:is|are|was|(?:would|will|must|should)\s+be)\b(?!\s+not\b)|[:=])
  [\s:=]*
  | I(?:\s+would|['’]ll|\s+will|['’]d)?\s+(?:choose|pick|select|go\s+with)\b[\s:]*
  )
  """,
  re.VERBOSE | re.IGNORECASE,
)
_SENTENCE_END = re.compile(r'(?<!^[A-Za-z])(?<!\s[A-Za-z])[.!?](?=\s|$)|\n')
_KIND = r'(?:(?:the\s+)?(?:correct\s+)?(?:option|choice|letter|answer)\s*:?\s+)?'
_START = re.compile(
  rf"^[\s:]*{_KIND}(?:\(\s*(?P<round>[a-z])\s*\)|(?P<plain>[a-z])(?![\w'’^+*/-]))", re.IGNORECASE
)
# Required after "A", which is also an article, and after a lower-case letter.
_LETTER_ENDS = re.compile(r'\s*(?:$|[.,;:)!?\n=—–-]|(?:because|since|as|which|and|or|nor|is)\b)')
_BRACKET = re.compile(r' ?[\[(]')  # after a capital letter: the option's text
_CALLED = re.compile(r'\b(?:option|choice|letter)\s*:?\s+$', re.IGNORECASE)
_OTHER = re.compile(
  rf"""
  [\s.:;)]*
  (?: (?:(?:,|/|&|\bor\b|\band\b)\s*)+ {_KIND}
      (?:\(\s*([A-Za-z])\s*\)|([A-Z])(?=\s*(?:$|[.,;:)!?\n/&]|or\b|and\b)))
    | \(\s*([A-Za-z])\s*\) )
  """,
  re.VERBOSE,
)
_CHOSEN = re.compile(
  rf"""
  (?=[(A-HMSTWfhmstw])(?<!\w)(?:  # first letters, which are found faster
  (?<!['’])\(?(?P<said>[A-H])\b[).]*\s+(?:is|must\s+be|would\s+be)\s+
  (?:(?:the|clearly|therefore|thus|a)\s+)*(?:correct|right|best|true|answer)\b
  | (?i:{answer_marks.CONCLUSION}[\s,:]*(?:(?:it\s+(?:is|must\s+be)|it['’]s)\s+)?{_KIND})
    (?:\(\s*)?(?P<concluded>[A-H])(?:\s*\))?(?=[.;!?]*\s*(?:$|\n)|[.;!?]+\s+[^\sa-z])
  )
  """,
  re.VERBOSE,
)
_ALONE = re.compile(
  rf'^\W*{_KIND}\(?([a-h])\)?(?:\s*[\[(](?!\s*\w\s*[)\]])[^()\[\]]*[)\]])?\W*$', re.IGNORECASE
)
_OPENING = re.compile(
  r'^\s*(?:[Oo]ption\s+|[Cc]hoice\s+)?'
  r'(?:\(\s*([A-Ha-h])\s*\)|([A-Ha-h])\)|([A-H])(?:[.:,](?=\s|$)|\s+[-–—]\s|\s+because\b))'
)
_LISTED = re.compile(r'(?:^|\n)[^\S\n]*([A-H])[.:]\s|\(([A-Ha-h])\)|(?<!\w)([A-H])\)')
_NAMED = re.compile(
  # Neither behind a function's name, as in P(A), nor part of an abbreviation or a unit.
  r"(?<![\w'’^+*/=~°-])(?<![\w~°]\()(?<!° )(?P<round>\()?(?P<letter>[A-H])"
  r"(?(round)\s*\)|(?![\w'’^+*/=-]|\.\w))"
)
_NEGATED = re.compile(
  r"(?:(?:\b(?:not|cannot|neither|nor|except)|n['’]t)(?:\s+be)?\s+"
  r'|\b(?:incorrect|wrong|false)\s+answer(?:\s+(?:is|was|would\s+be)\b|\s*[:=])[\s:]*)[(]?$',
  re.IGNORECASE,
)


class _NoAnswer(Exception):
  """Error: the text answers, but with no single option of the task."""


def extract_choice(text: str, letters: str = 'ABCDE') -> str | None:
  """Returns the option that `text` chooses, a capital letter, or None (rules: see the module)."""
  try:
    for found in _candidates(answer_marks.passage(text)):
      if found is not None:
        return found if found in letters else None
  except _NoAnswer:
    pass
  return None


def grade_choice(text: str, gold: str, letters: str = 'ABCDE') -> float:
  """Returns 1.0 if `text` chooses the option `gold`, else 0.0.

  Raises:
    ValueError: if `gold` is not one of `letters`.
  """
  if len(gold) != 1 or gold not in letters:
    raise ValueError(f'gold answer {gold!r} is not one of the options {letters}')
  return float(extract_choice(text, letters) == gold)


def _candidates(text: str) -> Iterator[str | None]:
  """Yields the letter that each rule finds, best rule first."""
  bare, begun = (lambda line, form=form: form.match(_plain(line)) for form in (_ALONE, _START))
  sentences = lambda text: answer_marks.answer_sentences(_plain(text), _MARK, _SENTENCE_END)
  for passage, is_sentence in answer_marks.marked(text, bare, begun, sentences):
    yield _stated(passage if is_sentence else _plain(passage))
  text = _plain(text)
  for match in answer_marks.last(_CHOSEN, text):
    if not _NEGATED.search(text[max(0, match.start() - 40) : match.start()]):
      yield match['said'] or match['concluded']
  lines = text.strip().split('\n')
  for line in (lines[-1], lines[0]):
    alone = _ALONE.match(line)
    yield alone[1].upper() if alone else None
  opening = _OPENING.match(text)
  if opening and not _OTHER.match(text, opening.end(opening.lastindex or 0)):
    listed = {_group(match).upper() for match in _LISTED.finditer(text)}
    yield _group(opening).upper() if len(listed) < 2 else None
  yield _only(text)


def _plain(text: str) -> str:
  return _QUOTED.sub(r'\1', _LOOKS.sub('', text))


def _group(match: re.Match[str]) -> str:
  """Returns the only group with a match."""
  return next(group for group in match.groups() if group)


def _stated(passage: str) -> str | None:
  """Returns the option of a marked passage: its first word, else the only option in it."""
  match = _START.match(passage)
  if match is None:
    return _only(passage)
  letter = match['round'] or match['plain']
  rest = passage[match.end() :]
  sure = match['round'] or (letter.isupper() and letter != 'A') or _LETTER_ENDS.match(rest)
  if letter == 'A':
    sure = sure or _BRACKET.match(rest) or _CALLED.search(passage[: match.end() - 1])
  if letter.upper() > _MAX_LETTER or not sure:
    return _only(passage)
  other = _OTHER.match(rest)
  if other and _group(other).upper() != letter.upper():
    return _conclusion(passage)
  return letter.upper()


def _only(passage: str) -> str | None:
  """Returns the only option that a passage names; None if it names none.

  Raises:
    _NoAnswer: if it names several without a conclusion.
  """
  names = set()
  for match in _NAMED.finditer(passage):
    before = passage[max(0, match.start() - 40) : match.start()]
    article = match['letter'] == 'A' and not match['round']
    article = article and not (_LETTER_ENDS.match(passage, match.end()) or _CALLED.search(before))
    if not article and not _NEGATED.search(_CALLED.sub('', before)):
      names.add(match['letter'])
    if len(names) > 1:
      return _conclusion(passage)
  return names.pop() if names else None


def _conclusion(passage: str) -> str:
  """Returns the conclusion of a passage with several options: D of "A and B are true, so D".

  Raises:
    _NoAnswer: if it concludes nothing.
  """
  for match in answer_marks.last(_CHOSEN, passage):
    if match['concluded']:
      return match['concluded']
  raise _NoAnswer
