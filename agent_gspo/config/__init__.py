"""Composes and checks the config of a run: `defaults` has all sections, `check` validates them.

Config files import this, so nothing here imports JAX: `check`, which does, is imported by name.
"""

from agent_gspo.config.defaults import Config, default_config

__all__ = ['Config', 'default_config']
