"""What `pip install` finds on each platform."""
