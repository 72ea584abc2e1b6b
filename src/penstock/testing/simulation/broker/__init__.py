"""One simulated broker: `broker` drives the node as the real driver does; the other modules are its parts."""
