"""The checks: `checks` holds one broker to its promises, `agreement` all brokers together."""
