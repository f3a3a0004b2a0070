"""What a process reports about its calls: counters and OpenTelemetry spans."""
