"""What the cluster agrees on: commands, the journal that keeps them, the immutable image they fold to."""
