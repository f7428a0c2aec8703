"""Redaction: secrets are replaced in every text before it is stored."""
