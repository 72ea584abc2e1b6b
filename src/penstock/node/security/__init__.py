"""Authorization: which user may do what. `Access.check` is called for every request before its handler."""
