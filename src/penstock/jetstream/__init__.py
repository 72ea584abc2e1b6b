"""Gateway: JetStream's API for unmodified NATS clients, translated into requests to the node.

It is a core, as the node is: the driver passes it messages, answers and the time, and it adds to the node's step. It
keeps nothing that must survive a restart.
"""
