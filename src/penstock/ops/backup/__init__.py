"""A backup: its files, what writes and verifies them, and what makes streams and users from them."""
