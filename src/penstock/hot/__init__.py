"""The work done per message. Plain Python that a C compiler can be given later; nothing here knows of streams."""
