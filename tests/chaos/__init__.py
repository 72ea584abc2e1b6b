"""Real brokers under real faults, and a checker of what their clients saw: `make chaos`."""
