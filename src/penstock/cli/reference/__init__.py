"""Generates docs/reference from the commands, settings, errors, metrics and public names.

python -m penstock.cli.reference docs/reference
"""
