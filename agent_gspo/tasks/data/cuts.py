"""Defines splits that datasets lack, the same on every machine."""

from __future__ import annotations

import hashlib
import re


def masked(text: str) -> str:
  """Returns the text's lower-case words, numbers masked; equal for copies of a problem."""
  text = re.sub(r'[0-9]+(?:[.,/][0-9]+)*', ' number ', text.lower())
  return ' '.join(re.findall(r'[a-z]+', text))


def bucket(text: str) -> int:
  """Hashes the masked text to 0..99, so that copies of a problem share a bucket."""
  digest = hashlib.blake2b(masked(text).encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'big') % 100
