"""`penstock verify` and `penstock dump`: the files of a log, of a backup, or the replicas of live brokers."""
