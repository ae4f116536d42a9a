"""Environments: episodes in which agents observe a state and act on it."""
