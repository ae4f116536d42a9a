"""Builds the tables that a run ends with."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from agent_gspo.apps.reporting.comparison import comparison_table
from agent_gspo.apps.reporting.tables import closing_table
from agent_gspo.training.setup import BASELINES
from agent_gspo.workdir import records


def tables(workdir: pathlib.Path, trained: Mapping[str, Any]) -> Iterator[Table]:
  """Yields a table of the team before and after training, then one over prices or budgets."""
  evaluations = records.evaluations(workdir)
  # Records from before the run was extended to more steps are of another team.
  steps = (0, trained['step'])
  by_label = {e.get('label'): e for e in evaluations if e.get('step') in steps}
  baselines = [by_label[k] for k in (*BASELINES, records.SEEN) if k in by_label]
  yield closing_table(by_label.get(records.UNTRAINED, {}), trained, baselines=baselines)
  told = [e for e in evaluations if records.told_value(e) is not None]
  told = [e for e in told if e.get('step') == trained['step'] and records.asks_alike(e, trained)]
  if told:
    yield comparison_table(told)
