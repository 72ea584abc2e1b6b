"""The metadata leader's part: it answers brokers, watches their sessions and proposes most commands.

`controller.Controller` joins the others, each of which keeps one kind of state in memory only. `node.controller` calls
it, on the metadata leader alone; nothing here changes the image.
"""
