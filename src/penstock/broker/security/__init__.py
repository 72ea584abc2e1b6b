"""Secrets and certificates of a broker: the cluster secret, the logins to NATS, the certificate authority."""
