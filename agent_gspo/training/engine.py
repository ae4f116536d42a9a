"""Samples training rollouts on a server, see `teams.engine`, and publishes new weights to it."""

from __future__ import annotations

import functools
import tempfile

from agent_gspo import plugins
from agent_gspo.models import lora
from agent_gspo.models.io import hf
from agent_gspo.teams import endpoint
from agent_gspo.teams.engine import EnginePolicy
from agent_gspo.teams.policies import ModelPolicy, Policy, divided
from agent_gspo.training import state as state_lib
from agent_gspo.training.setup import Setup
from agent_gspo.training.state import TrainState

_LOADING_S = 600.0  # for a server to read the weights


def policy(setup: Setup, local: ModelPolicy) -> Policy:
  """Returns the policy of a training rollout: `local`, with a server for `model.source`."""
  if not setup.config.rollout.engine:
    return local
  own = EnginePolicy(
    *endpoint.parse(setup.config.rollout.engine),
    setup.tokenizer,
    local.temperature,
    endpoint.api_key(),
    row_keys=local.row_keys,
    unsaid=setup.model.config.unsaid,
  )
  policies = {'': own, **local.others}
  return functools.partial(divided, author=lambda turn: turn.model, policies=policies)


def publish(setup: Setup, state: TrainState) -> None:
  """Sends the weights of a state to the server, and waits until it has loaded them.

  Raises:
    EndpointError: The server did not load them.
    PluginError: `rollout.publish` failed.
  """
  options = setup.config.rollout
  if not options.engine:
    return
  params = state_lib.without_members(state.params)
  params = lora.merge_adapters(setup.model.config, lora.one_adapter(params, 0))
  step = int(state.step)
  if options.publish:
    function = plugins.load_function(options.publish, 'rollout.publish')
    plugins.call('rollout.publish', options.publish, function, params, step)
    return
  with tempfile.TemporaryDirectory(prefix='agent_gspo_') as folder:
    hf.export_hf(setup.model.config.without_adapters(), params, folder)
    server = endpoint.EndpointPolicy(
      *endpoint.parse(options.engine),
      setup.tokenizer,
      options.temperature,
      endpoint.api_key(),
      timeout_s=_LOADING_S,
      deadline_s=2 * _LOADING_S,
    )
    server.post('/weights', {'folder': folder, 'step': step})
