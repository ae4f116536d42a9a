"""Fuzzes the commands with malformed inputs of every kind.

    python tests/support/fuzz_inputs.py [--seed=N] [CATEGORY...]

prints counts, and every input that did not end with one clear error line.
"""

from __future__ import annotations

import pathlib
import sys

# A script finds what lies beside it, not the package above.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import fuzz_code
import fuzz_configs
import fuzz_graders
import fuzz_plugins
import fuzz_weights
import fuzzing

CATEGORIES = {
  'configs': fuzz_configs.cases,
  'gguf': fuzz_weights.gguf_cases,
  'hf': fuzz_weights.hf_cases,
  'tokenizers': fuzz_weights.tokenizer_cases,
  'chat': fuzz_weights.chat_cases,
  'plugins': fuzz_plugins.cases,
  'graders': fuzz_graders.cases,
  'code': fuzz_code.cases,
}

if __name__ == '__main__':
  fuzzing.main(CATEGORIES, sys.argv[1:])
