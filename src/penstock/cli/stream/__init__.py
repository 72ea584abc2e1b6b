"""`penstock stream` and `penstock group`: create, show, alter, copy, purge, delete; consumer groups and their lag."""
