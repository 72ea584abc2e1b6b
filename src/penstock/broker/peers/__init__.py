"""Connections to the other brokers of the cluster, and to a cluster that this broker joins. `broker.driver` owns
them.
"""
