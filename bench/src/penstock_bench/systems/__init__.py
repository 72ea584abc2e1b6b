"""The measured systems: Penstock, JetStream, Kafka and Liftbridge in their variants, alone or with three replicas,
each started, written, read back and stopped in the same way; and the ceilings, which store nothing.

`measure` and everything above it may call it. A system is one row of a table of `Variant`s.
"""
