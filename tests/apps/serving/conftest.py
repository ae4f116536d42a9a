"""A served team, shared by the tests of the endpoint."""

from __future__ import annotations

import pytest
from served_team import Served, serving


@pytest.fixture
def served():
  return Served()


@pytest.fixture
def address(served):
  with serving(served) as found:
    yield found
