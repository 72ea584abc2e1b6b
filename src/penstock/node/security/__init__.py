"""Authorization: which user may do what. `Call.authorize` is called before its handler, and after a wait."""
