"""`penstock archive`, and what the archive commands on Spark share with it."""
