"""Commands about users, permissions, keys and certificates: user, acl, keys, certs, nats-config."""
