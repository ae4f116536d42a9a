"""Cuts into splits that the datasets do not define, the same on every machine."""

from __future__ import annotations

import hashlib
import re


def masked(text: str) -> str:
  """Lower-case words of the text, numbers replaced: what makes two problems the same."""
  text = re.sub(r'[0-9]+(?:[.,/][0-9]+)*', ' number ', text.lower())
  return ' '.join(re.findall(r'[a-z]+', text))


def bucket(text: str) -> int:
  """0..99 by a hash of the masked text, so that copies of a problem share a bucket."""
  digest = hashlib.blake2b(masked(text).encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'big') % 100
