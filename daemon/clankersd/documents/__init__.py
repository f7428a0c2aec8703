"""Documents: taken apart outside the daemon's process, cut into chunks, stored so that nothing is lost half way."""
