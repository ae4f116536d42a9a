"""Checks that mutants are planted in every module of formulas."""

from benchmarks import mutation_check


def test_each_module_names_tests_that_exist():
  mutation_check.check_tables()


def test_mutants_are_mistakes_of_the_module_itself():
  found = list(mutation_check.mutants('rewards/scores.py'))
  assert any(m.change == 'votes > rival -> votes <= rival' for m in found)
  assert len({m.source for m in found}) == len(found)
