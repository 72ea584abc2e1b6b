"""The record batch format. `FORMAT.md` beside this file draws every byte."""
