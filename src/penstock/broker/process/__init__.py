"""The process: disk threads, signals, systemd, time limits of what runs in threads."""
