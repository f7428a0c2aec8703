"""`python -m clankersd`."""

from clankersd.main import main

main()
