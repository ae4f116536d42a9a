"""Opens the other models that write for some roles, frozen or trained beside `model.source`.

A message crosses between models as text, see `PromptWriter.said`. Each model learns from its own
agents' messages, with all of its parameters.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

from agent_gspo import streams
from agent_gspo.config import check as config_lib
from agent_gspo.models import partition
from agent_gspo.models.config import ModelConfig
from agent_gspo.models.load import Model
from agent_gspo.models.transformer import Params
from agent_gspo.sampling.sampler import Sampler
from agent_gspo.teams.roles import ENDPOINT
from agent_gspo.teams.sharing import Sharing


@dataclasses.dataclass(frozen=True)
class Member:
  """Model of some roles.

  Attributes:
    model: Model, whose parameters are read when they are first needed.
    sampler: Sampler of the model.
    name: Name of its parameters in the state, see `Team.trained`; '' for a frozen model.
  """

  model: Model
  sampler: Sampler
  name: str = ''

  @functools.cached_property
  def params(self) -> Params:
    """Returns the parameters of a frozen model on the devices that sample."""
    return partition.own_copy(self.model.params, self.sampler.config, self.sampler.placement)


def open_members(
  parts: config_lib.Parts,
  open_model: Callable[[str, int], Model],
  make_sampler: Callable[[ModelConfig], Sampler],
) -> dict[str, Member]:
  """Opens the models of `Role.model`, but reads no parameters; endpoints are left out.

  Args:
    parts: Parts of the run.
    open_model: Opens a source; the seed is that of a model from scratch.
    make_sampler: Makes the sampler of a model without adapters.

  Returns:
    Members by source.

  Raises:
    ValueError, FileNotFoundError, ConnectionError: See `models.load.open_model`.
  """
  found = {}
  for source in sorted({role.model for role in parts.team.roles if role.model}):
    if not source.startswith(ENDPOINT):
      drawn = streams.generator(parts.config.seed, streams.MEMBER_WEIGHTS).integers(2**31)
      model = open_model(source, int(drawn))
      name = parts.team.trained.get(source, '')
      found[source] = Member(model, make_sampler(model.config), name)
  return found


def with_tokenizers(parts: config_lib.Parts, members: Mapping[str, Member]) -> config_lib.Parts:
  """Returns the parts, with a team that writes the prompts of each member in its vocabulary."""
  tokenizers = {source: member.model.tokenizer for source, member in members.items()}
  return dataclasses.replace(parts, team=dataclasses.replace(parts.team, tokenizers=tokenizers))


def sharings(parts: config_lib.Parts) -> dict[str, Sharing]:
  """Returns the policies of each model's agents, by its name in the state."""
  team = parts.team
  ours = frozenset(filter(parts.sharing.learns, team.written_by('')))
  of = {name: Sharing(trained=team.written_by(source)) for source, name in team.trained.items()}
  return {'': dataclasses.replace(parts.sharing, trained=ours), **of}
