"""One broker's cores put together: messages and requests in, a `Step` out. No event loop, no clock, no socket."""
