"""`penstock stream` and `penstock group`: create, show, alter, copy, import, purge, delete; consumer groups and their lag."""
