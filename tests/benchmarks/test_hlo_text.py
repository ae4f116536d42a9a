"""Compares costs read from compiled text with the work of the programs."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.hlo_text import Module

_TPU = """
HloModule jit_f, is_scheduled=true

%all-reduce-scatter.3 (p.1: f32[8,128]) -> f32[1,128] {
  %p.1 = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %s.1 = f32[1,128]{1,0:T(1,128)} slice(%p.1), slice={[0:1], [0:128]}
}

%fused (p.2: bf16[64,16], p.3: s32[]) -> bf16[2,16] {
  %p.2 = bf16[64,16]{1,0:T(8,128)(2,1)} parameter(0)
  %p.3 = s32[]{:T(128)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  ROOT %d.1 = bf16[2,16]{1,0:T(8,128)(2,1)} dynamic-slice(%p.2, %p.3, %zero), sizes={2,16}
}

%body (p.4: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %p.4 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%p.4), index=0
  %x.1 = f32[8,128]{1,0:T(8,128)} get-tuple-element(%p.4), index=1
  %r.1 = f32[8,128]{1,0:T(8,128)} all-reduce(%x.1), backend_config={"estimated_cycles":"10"}
  ROOT %t.1 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) tuple(%i.1, %r.1)
}

%condition (p.5: (s32[], f32[8,128])) -> pred[] {
  %p.5 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %i.2 = s32[]{:T(128)} get-tuple-element(%p.5), index=0
  %c.1 = s32[]{:T(128)} constant(5)
  ROOT %l.1 = pred[]{:T(512)} compare(%i.2, %c.1), direction=LT
}

ENTRY %main (a: f32[8,128], b: bf16[64,16], i: s32[]) -> f32[8,128] {
  %a = f32[8,128]{1,0:T(8,128)} parameter(0)
  %b = bf16[64,16]{1,0:T(8,128)(2,1)} parameter(1)
  %i = s32[]{:T(128)} parameter(2)
  %f.1 = bf16[2,16]{1,0:T(8,128)(2,1)} fusion(%b, %i), kind=kLoop, calls=%fused
  %g.1 = (f32[1,128]{1,0}, f32[8,128]{1,0:T(8,128)}) all-gather-start(%a), dimensions={0}
  %g.2 = f32[8,128]{1,0:T(8,128)} all-gather-done(%g.1)
  %rs.1 = f32[1,128]{1,0:T(1,128)S(1)} fusion(%a), kind=kCustom, calls=%all-reduce-scatter.3
  %t.2 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) tuple(%i, %g.2)
  %w.1 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) while(%t.2), condition=%condition, body=%body
  ROOT %o.1 = f32[8,128]{1,0:T(8,128)} get-tuple-element(%w.1), index=1
}
"""


def test_loops_count_as_often_as_they_run():
  def repeated(x, w):
    return jax.lax.fori_loop(0, 7, lambda unused, x: jnp.tanh(x @ w), x)

  x, w = jnp.ones((4, 16)), jnp.ones((16, 16))
  module = Module(jax.jit(repeated).lower(x, w).compile().as_text())
  assert module.flops() == 7 * 2 * 4 * 16 * 16


def test_batched_products_are_counted_once():
  a, b = jnp.ones((3, 8, 16)), jnp.ones((3, 16, 32))
  module = Module(jax.jit(jnp.matmul).lower(a, b).compile().as_text())
  assert module.flops() == 3 * 2 * 8 * 16 * 32


def test_products_that_meet_padding_are_none():
  """A TPU's text of the same product: its window is dilated, so that each tap meets one number."""
  line = (
    '%c = f32[3,8,32]{2,1,0} convolution(%a, %b), '
    'window={size=3 stride=2 pad=0_0 lhs_dilate=3}, dim_labels=0bf_0io->0bf'
  )
  text = (
    'ENTRY %main (a: f32[3,8,16], b: f32[3,16,32]) -> f32[3,8,32] {\n'
    '  %a = f32[3,8,16]{2,1,0} parameter(0)\n  %b = f32[3,16,32]{2,1,0} parameter(1)\n'
    f'  ROOT {line}\n}}\n'
  )
  assert Module(text).flops() == 3 * 2 * 8 * 16 * 32


def test_collectives_are_counted_by_kind():
  kilobytes = 8 * 128 * 4
  assert Module(_TPU).collectives() == {
    'all-gather': {'count': 1, 'bytes': kilobytes},
    'all-reduce': {'count': 5, 'bytes': 5 * kilobytes},
    'reduce-scatter': {'count': 1, 'bytes': kilobytes / 8},
  }


def test_traffic_and_cycles():
  module = Module(_TPU)
  # A row in HBM has whole tiles; what is in VMEM costs nothing, of a slice only its part is read.
  row, index, whole = 16 * 2 * 2, 4, 8 * 128 * 4
  written_slice = 8 * 128 * 2
  gathered = 128 * 4 + whole + whole
  assert module.hbm_bytes() == row + index + written_slice + gathered + whole + 5 * 2 * whole
  assert module.cycles() == 5 * 10


def test_text_that_is_no_program():
  with pytest.raises(ValueError, match='no text of a compiled program'):
    Module('nothing')


def test_one_turn_of_a_loop_is_a_program_of_its_own():
  assert Module(_TPU).cycles() == 5 * 10
  assert Module(_TPU).loop().cycles() == 10
  with pytest.raises(ValueError, match='no loop'):
    Module(_TPU).loop().loop()


def test_kernels_are_found_by_name():
  call = '  %x.1 = f32[8,128]{1,0} custom-call(%a), custom_call_target="tpu_custom_call"\n'
  start = _TPU.index('  %f.1 = ')
  text = _TPU[:start] + call.replace('x.1', 'mine.1') + call.replace('x.1', 'mine_too.1')
  found = list(Module(text + _TPU[start:]).kernels('mine.'))
  assert [(call.name, call.results[0].shape, times) for call, times in found] == [
    ('mine.1', (8, 128), 1.0)
  ]
