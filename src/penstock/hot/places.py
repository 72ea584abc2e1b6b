"""Layout of a row's numbers: the positions of its parts in the bytes of a `Group`.

Each part has two numbers, its begin and (one further) its end; a begin of -1 means that the row lacks the part.
`places.pxd` holds the same numbers for compiled code.
"""

SUBJECT = 0
REPLY = 2  # reply subject for an ack once the row is as durable as its stream promises
HEADERS = 4
VALUE = 6
KEY = 8  # in the group's keys
EARLY = 10  # reply subject for an ack as soon as the row is written
STRIDE = 12
"""Numbers per row."""
