"""The metadata log: drives Raft, applies its entries to the metadata image, registers brokers, asks peers.

`node.control` and `node.controller` propose commands; all parts read the image.
"""
