"""Import of a JetStream stream: its config, its messages, and the cut-over."""
