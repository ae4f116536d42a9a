"""The commands, which launch/ and the console scripts run; one a process, each with its flags."""
