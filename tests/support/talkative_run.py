"""Defines the micro run with informants that can read one another, for any topology."""

from __future__ import annotations

import pathlib
import sys

# A command that reads this file does not look beside it.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import micro_run
from ml_collections import config_dict

CONFIG = pathlib.Path(__file__).resolve()


def get_config() -> config_dict.ConfigDict:
  config = micro_run.get_config()
  with config.unlocked():
    config.team.roles.informant.incoming = ' {sender} : {message}'
  return config
