"""The commands, which launch/ and the console scripts run."""
