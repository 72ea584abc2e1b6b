"""Reading that the operations and the command `read` share: places, consumer groups, outages of a broker."""
