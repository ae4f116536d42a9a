"""Implements array operations, with one variant per kind of device."""
