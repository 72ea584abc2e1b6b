"""The results of a run as data (`report`, which `--json` writes), in words and numbers (`wording`), and as an HTML
page with plots (`page`).

Experiments and runs make reports; the commands show them. The tables of the terminal are in `cli.output`.
"""
