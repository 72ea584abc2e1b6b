"""`penstock stream`, `group` and `import`: create, show, alter, copy, purge, delete; consumer groups and their lag."""
