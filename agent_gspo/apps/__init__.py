"""Contains commands, displays, reports and the HTTP endpoint; the core never imports them."""
