"""The HTTP port: health, metrics, status pages; and export by OpenTelemetry. `broker.serve` starts it."""
