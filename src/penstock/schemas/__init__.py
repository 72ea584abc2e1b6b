"""Schemas of streams: what values mean, which changes of a schema are compatible, and values as typed Arrow columns.

Pure: bytes in, Arrow out. Where schemas are kept, and who asks for them, is for the client.
"""
