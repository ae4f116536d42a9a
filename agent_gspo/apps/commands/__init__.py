"""Defines the commands that launch/ and the console scripts run, each with its own flags."""
