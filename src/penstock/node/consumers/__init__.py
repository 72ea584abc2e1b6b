"""Logs of consumers, on the leader's side: what they held when a leadership began, and appends to them."""
