"""A store with a generated week of work, for trying the view and the command line, and for screenshots."""
