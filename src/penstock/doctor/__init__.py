"""`penstock doctor`: looks at a live system, says what it found, and what to do. It changes nothing.

Rules: nothing is published on a subject of anybody's, and nothing is stored. Whether somebody may publish is asked in a
way that nats-server refuses in any case (see `trying`). What could not be looked at is told as such, and never as well.
"""
