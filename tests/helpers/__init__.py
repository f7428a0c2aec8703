"""What several tests need: processes, connections, sample files and services that misbehave."""
