"""An archive: copies streams into a lake, each message exactly once, whatever runs its tasks."""
