"""The replicas on this broker: opens their logs, makes them leaders or followers as the metadata says, repairs them.

`Replicas` builds the parts; `node.Node` and the handlers of `node.api` call it.
"""
