"""`penstock demo`: flights are published, read, and kept as a table by Spark; one broker or a cluster."""
