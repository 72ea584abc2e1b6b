"""The effect of each command on the image. `apply` dispatches, the other modules hold one kind of commands each.

All functions are pure and deterministic: every broker applies the same commands and gets the same image. The metadata
log (`node.quorum`, `persistence.fold`) calls `apply`; others may only use the types and checks of a module.
"""
