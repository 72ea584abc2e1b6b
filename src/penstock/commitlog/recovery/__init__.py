"""Recovery of a log at the start: finds its end, cuts a torn tail, rebuilds what is missing. `Log` calls it."""
