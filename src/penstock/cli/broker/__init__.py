"""Commands that run or look at brokers: serve, status, wait, health, doctor."""
