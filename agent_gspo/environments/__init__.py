"""Defines environments: tasks whose agents observe a state and act on it."""
