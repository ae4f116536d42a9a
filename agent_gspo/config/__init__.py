"""The config of a run: `defaults` composes the sections of all rooms, `check` looks at the whole.

Config files import this, so nothing here imports JAX: `check`, which does, is imported by name.
"""

from agent_gspo.config.defaults import default_config

__all__ = ['default_config']
