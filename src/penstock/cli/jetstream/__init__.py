"""`penstock import`: moves a stream from JetStream, with its sequences."""
