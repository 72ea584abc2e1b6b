"""Decisions of the metadata leader (Kafka's controller): streams and their placement, users, the audit log.

`node.control` passes requests here while this broker leads the metadata.
"""
