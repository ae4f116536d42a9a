"""Serves a team over HTTP: as one model in OpenAI's protocol, and as a chat page."""
