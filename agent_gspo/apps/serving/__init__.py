"""A team behind an HTTP endpoint: as one model in OpenAI's protocol, and as a page to talk to."""
