"""What the numbers of a row are: the positions of its parts in the bytes that a `Group` keeps.

Each part has two numbers, its begin and (one further) its end; a begin of -1 says that the row has no such part.
`places.pxd` holds the same numbers for compiled code.
"""

SUBJECT = 0
REPLY = 2  # who waits for the ack that comes once the row is as durable as its stream promises
HEADERS = 4
VALUE = 6
KEY = 8  # in the group's keys
EARLY = 10  # who waits for the ack that comes as soon as the row is written
STRIDE = 12
"""Numbers of one row."""
