"""`penstock doctor`: checks a live system, reports findings and remedies. It changes nothing.

Rules: nothing is published on a subject in use, and nothing is stored. Publish permissions are tested with messages
that nats-server refuses in any case (see `trying`). A check that could not be made is reported as unknown, never as ok.
"""
