"""Administration: status, health, read-only SQL, database maintenance, doctor, client settings."""
