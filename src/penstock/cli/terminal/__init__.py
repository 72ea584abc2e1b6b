"""Shared by all commands: options, connections, output, errors, completion, confirmation.

Imports no command.
"""
