"""Capture: events from harnesses become rows."""
