"""Live rows: which rows of a partition's log readers are shown.

A leader hides rows by marks, which name offsets; the fold of the committed marks is the set of hidden rows.
"""
