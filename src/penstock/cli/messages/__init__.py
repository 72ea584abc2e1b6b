"""Commands that move messages: publish, read, relay."""
