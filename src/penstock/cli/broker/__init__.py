"""Commands that run or look at brokers: serve, status, health, doctor."""
