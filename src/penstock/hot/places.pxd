# See places.py.
cdef enum:
    SUBJECT = 0
    REPLY = 2
    HEADERS = 4
    VALUE = 6
    KEY = 8
    EARLY = 10
    STRIDE = 12
